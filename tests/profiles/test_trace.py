"""Reading traces: packings, damage, producers old and new."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_events import Event, document, event, kernel, operator, step, trace

from aiak_tune.errors import ProfileError
from aiak_tune.profiles.trace import read_trace
from aiak_tune.profiles.trace_kind import Kind, device_of_call, is_matmul, is_sync_call, kind_of

DOCUMENT = document([step(1, 0, 100), operator(10, 20), kernel(30, 40), kernel(50, 60.25)])
TEXT = json.dumps(DOCUMENT).encode()


def zipped(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("trace.json", data)
    return buffer.getvalue()


def two_gzip_members(data: bytes) -> bytes:
    return gzip.compress(data[:50]) + gzip.compress(data[50:])


@pytest.mark.parametrize(
    "pack",
    [
        lambda data: data,
        gzip.compress,
        two_gzip_members,
        zipped,
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: json.dumps(DOCUMENT["traceEvents"]).encode(),
        lambda data: data.replace(b'"name": 1', b'"name": NaN'),
        lambda data: data[:-1] + b', "extra": NaN}',
        lambda data: data[:-1] + b', "host": "\xff\xfe"}',
        lambda data: data.replace(b'"ts": 30', b'"ts": "30"'),
        lambda data: data[:-1] + b', "traceName": "fit-[Strategy]X.json"}',
    ],
)
def test_every_packing_reads_the_same(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "fit-[Strategy]X.json"
    path.write_bytes(pack(TEXT))
    got = read_trace(path)
    assert got.end.tolist() == [100_000, 20_000, 40_000, 60_250]
    assert got.start.tolist() == [0, 10_000, 30_000, 50_000]
    assert "truncated" not in {w.code for w in got.warnings}


@pytest.mark.parametrize("cut", [len(TEXT) - 1, len(TEXT) - 2, len(TEXT) - 30])
def test_a_file_that_ends_early_gives_what_is_whole(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT[:cut])
    got = read_trace(path)
    assert len(got) >= 3
    assert "truncated" in {w.code for w in got.warnings}


def test_a_cut_gzip_gives_what_is_whole(tmp_path: Path) -> None:
    many = document([operator(i, i + 0.5, f"aten::op{i * 7919 % 1000}") for i in range(1000)])
    path = tmp_path / "trace.json.gz"
    packed = gzip.compress(json.dumps(many).encode())
    path.write_bytes(packed[: len(packed) // 2])
    got = read_trace(path)
    assert 100 < len(got) < 1000
    assert "truncated" in {w.code for w in got.warnings}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"{}", "holds no traceEvents"),
        (b'"text"', "holds no traceEvents"),
        (b"not json at all", "is not valid JSON"),
        (b'{"name": "C:\\logs"', "is not valid JSON"),
        (b'{"traceEvents": []}', "holds no events"),
        (b"\x1f\x8b garbage", "damaged gzip"),
        (b"PK\x03\x04 garbage", "damaged zip"),
    ],
)
def test_what_is_no_trace_is_one_clear_error(data: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(ProfileError, match=says) as error:
        read_trace(path)
    assert str(path) in str(error.value)


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        read_trace(tmp_path / "none.json")


def test_broken_durations_are_clipped_and_counted() -> None:
    events = [operator(0, 10), operator(5, 4), event("kernel", "k", 6, 5), operator(3, 3)]
    got = trace([*events, {**operator(1, 2), "dur": None}])
    assert (got.end >= got.start).all()
    assert [w.text for w in got.warnings if w.code == "negative_durations"] == [
        "3 of 5 events without an end or ending before they start"
    ]


@pytest.mark.parametrize("at", [None, "soon", float("nan"), 1e300, [1]])
def test_an_event_without_a_usable_time_is_left_out(at: object) -> None:
    got = trace([operator(5, 10), {**operator(6, 7), "ts": at}])
    assert got.end.tolist() == [5_000]
    assert "bad_times" in {w.code for w in got.warnings}


def test_nanoseconds_survive_a_clock_since_boot() -> None:
    got = trace([operator(5250862597228.845, 5250862597229.845), operator(5250862597231.001, 0)])
    assert (got.start - got.start[0]).tolist() == [0, 2156]


def test_flows_metadata_and_odd_arguments_do_no_harm() -> None:
    odd: list[Event] = [
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "ts": 1, "id": 3},
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {**operator(1, 2), "args": "text"},
        {**operator(2, 3), "args": {"correlation": "none", "External id": -5}},
        {"ph": "X", "cat": None, "name": None, "ts": 1, "dur": 1},
    ]
    assert len(trace(odd)) == 2


def test_the_rank_is_taken_from_the_trace_or_said_to_be_missing() -> None:
    known = trace([operator(0, 1)], distributedInfo={"rank": 3, "world_size": 8})
    assert (known.rank, known.world_size, known.warnings) == (3, 8, ())
    for info in (None, {}, {"backend": "nccl"}, "rank 3"):
        missing = trace([operator(0, 1)], distributedInfo=info)
        assert (missing.rank, missing.world_size) == (0, 1)
        assert [w.code for w in missing.warnings] == ["no_rank"]


LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@pytest.mark.parametrize(
    ("category", "name", "kind"),
    [
        ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", Kind.COLLECTIVE),
        ("kernel", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", Kind.COLLECTIVE),
        ("kernel", "void cudnn::engines_precompiled::nchwToNhwcKernel<float>", Kind.KERNEL),
        ("kernel", "__amd_rocclr_copyBuffer", Kind.KERNEL),
        ("Kernel", "elementwise_kernel", Kind.KERNEL),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", Kind.MEMCPY_HTOD),
        ("gpu_memcpy", "Memcpy HtoD (Host -> Device)", Kind.MEMCPY_HTOD),
        ("Memcpy", "Memcpy DtoH (Device -> Pageable)", Kind.MEMCPY_DTOH),
        ("gpu_memcpy", "Memcpy DtoD (Device -> Device)", Kind.MEMCPY_DTOD),
        ("gpu_memset", "Memset (Device)", Kind.MEMSET),
        ("Operator", LOADER, Kind.FETCH),
        ("cpu_op", LOADER, Kind.FETCH),
        ("user_annotation", LOADER, Kind.FETCH),
        ("user_annotation", "aiak#fetch", Kind.FETCH),
        ("Operator", "ProfilerStep#12", Kind.STEP),
        ("user_annotation", "ProfilerStep#12", Kind.STEP),
        ("gpu_user_annotation", "ProfilerStep#12", None),
        ("user_annotation", "Optimizer.step#AdamW.step", Kind.OPTIMIZER),
        ("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", Kind.ANNOTATION),
        ("user_annotation", "gloo:all_reduce", Kind.HOST_COLLECTIVE),
        ("cpu_op", "c10d::allreduce_", Kind.COLLECTIVE_CALL),
        ("cpu_op", "Torch-Compiled Region: 0/0", Kind.OPERATOR),
        ("user_annotation", "## Call CompiledFxGraph fal4 ##", Kind.OPERATOR),
        ("cuda_runtime", "hipMemcpyWithStream", Kind.RUNTIME),
        ("Runtime", "cudaLaunchKernel", Kind.RUNTIME),
        ("cuda_driver", "cuLaunchKernelEx", Kind.RUNTIME),
        ("xpu_runtime", "urEnqueueKernelLaunch", Kind.RUNTIME),
        ("python_function", "train.py(3): main", None),
        ("Trace", "PyTorch Profiler (0)", None),
    ],
)
def test_kinds_of_old_and_new_producers(category: str, name: str, kind: Kind | None) -> None:
    assert kind_of(category, name) is kind


def test_runtime_calls_tell_the_device_and_what_blocks() -> None:
    assert device_of_call("cudaLaunchKernel") == device_of_call("cuLaunchKernelEx") == "cuda"
    assert device_of_call("hipExtModuleLaunchKernel") == "rocm"
    assert device_of_call("urEnqueueKernelLaunch") == "xpu"
    assert device_of_call("cudaGetDeviceCount") is None
    assert is_sync_call("cudaStreamSynchronize") and is_sync_call("hipDeviceSynchronize")
    assert not is_sync_call("cudaLaunchKernel")


@pytest.mark.parametrize(
    ("kind", "name", "is_one"),
    [
        (Kind.KERNEL, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", True),
        (Kind.KERNEL, "nvjet_tst_128x64_64x6_1x2_h_bz_NNN", True),
        (Kind.KERNEL, "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", True),
        (Kind.KERNEL, "pytorch_flash::flash_fwd_kernel", True),
        (Kind.KERNEL, "vectorized_elementwise_kernel", False),
        (Kind.OPERATOR, "aten::addmm", True),
        (Kind.OPERATOR, "aten::mkldnn_convolution", True),
        (Kind.OPERATOR, "aten::convolution_backward", True),
        (Kind.OPERATOR, "aten::_scaled_dot_product_flash_attention_for_cpu", True),
        (Kind.OPERATOR, "mkldnn::_linear_pointwise", True),
        (Kind.OPERATOR, "aten::mul", False),
        (Kind.RUNTIME, "aten::mm", False),
    ],
)
def test_matmuls_are_known_by_name(kind: Kind, name: str, is_one: bool) -> None:
    assert is_matmul(kind, name) is is_one
