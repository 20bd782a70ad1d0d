"""What an event of a trace is, by its category and name, over producers old and new."""

from __future__ import annotations

import re
from enum import IntEnum


class Kind(IntEnum):
    """The kinds that attribution tells apart; everything else is dropped while reading."""

    KERNEL = 0
    COLLECTIVE = 1  # on the device
    MEMCPY_HTOD = 2
    MEMCPY_DTOH = 3
    MEMCPY_DTOD = 4
    MEMSET = 5
    OPERATOR = 6  # also compiled regions and autograd nodes
    RUNTIME = 7
    HOST_COLLECTIVE = 8  # c10d's own record: from the call to the completion, on any thread
    COLLECTIVE_CALL = 9  # an operator that starts or waits for a collective
    FETCH = 10
    STEP = 11
    OPTIMIZER = 12
    ANNOTATION = 13


DEVICE_KINDS = (
    Kind.KERNEL,
    Kind.COLLECTIVE,
    Kind.MEMCPY_HTOD,
    Kind.MEMCPY_DTOH,
    Kind.MEMCPY_DTOD,
    Kind.MEMSET,
)
# Time inside these is time inside PyTorch or the driver.
CALL_KINDS = (Kind.OPERATOR, Kind.RUNTIME, Kind.COLLECTIVE_CALL)
AUTOGRAD_NODE = "autograd::engine::evaluate_function"

_MARKS = (
    (re.compile(r"ProfilerStep#\d+$"), Kind.STEP),
    # Its category went from Operator over cpu_op to user_annotation (kineto#610), so names decide.
    (re.compile(r"enumerate\(DataLoader\)#.*__next__$|aiak#fetch$"), Kind.FETCH),
    (re.compile(r"Optimizer\.step#"), Kind.OPTIMIZER),
    (re.compile(r"(gloo|nccl|rccl|mpi|ucc|xccl|oneccl|ccl):"), Kind.HOST_COLLECTIVE),
    (re.compile(r"(c10d::|_c10d_functional(_autograd)?::)"), Kind.COLLECTIVE_CALL),
    (re.compile(r"Torch-Compiled Region|## Call CompiledFxGraph"), Kind.OPERATOR),
)
_COLLECTIVE_KERNEL = re.compile(
    r"(^|[^a-z])(nccl|rccl|oneccl|mscclKernel|nvshmem)|cross_device_reduce"
    r"|(one|two)_shot_all_reduce|multimem_(all|one)",
    re.IGNORECASE,
)
_TO_DEVICE = re.compile(r"HtoD|HtoA|H2D|M2D|Host ?(->|To) ?Device", re.IGNORECASE)
_TO_HOST = re.compile(r"DtoH|AtoH|D2H|D2M|Device ?(->|To) ?Host", re.IGNORECASE)
_DEVICE_NAMES = (("hip", "rocm"), ("cu", "cuda"), ("ze", "xpu"), ("ur", "xpu"))


def kind_of(category: str, name: str) -> Kind | None:
    """Return the kind of a complete event, or None when attribution has no use for it."""
    match category.lower():
        case "kernel":
            return Kind.COLLECTIVE if _COLLECTIVE_KERNEL.search(name) else Kind.KERNEL
        case "gpu_memcpy" | "memcpy":
            return _copy_kind(name)
        case "gpu_memset" | "memset":
            return Kind.MEMSET
        case "cpu_op" | "operator":
            return _mark(name) or Kind.OPERATOR
        case "user_annotation":
            return _mark(name) or Kind.ANNOTATION
        case category if category.endswith(("runtime", "driver")):
            return Kind.RUNTIME
    # gpu_user_annotation repeats the host's marks: with it, steps would count twice.
    return None


def _mark(name: str) -> Kind | None:
    return next((kind for pattern, kind in _MARKS if pattern.match(name)), None)


def _copy_kind(name: str) -> Kind:
    if _TO_DEVICE.search(name):
        return Kind.MEMCPY_HTOD
    return Kind.MEMCPY_DTOH if _TO_HOST.search(name) else Kind.MEMCPY_DTOD


def device_of_call(name: str) -> str | None:
    """Return the device that a runtime call gives work to: cuda, rocm or xpu.

    A call that only asks (how many devices are there?) is no sign that one is used.
    """
    if not re.search("launch|memcpy|memset|enqueue|append|graph", name, re.IGNORECASE):
        return None
    return next((device for prefix, device in _DEVICE_NAMES if name.startswith(prefix)), None)


_SYNC = re.compile(r"(cuda|cu|hip|ze|ur)\w*(Synchronize|Finish|WaitWithTimeout)", re.IGNORECASE)


def is_sync_call(name: str) -> bool:
    """Say whether a runtime call blocks the host until the device has caught up."""
    return bool(_SYNC.match(name))


_MATMUL_KERNEL = re.compile(
    r"gemm|gemv|cutlass|xmma|cublas|nvjet|Cijk_|implicit_conv|convolve|conv2d|conv3d|convolution"
    r"|winograd|wgrad|dgrad|fprop|miopen.*conv|igemm|splitK|_mm_|triton_(tem|mm)|fmha|flash_?attn"
    r"|flash_(fwd|bwd)|attention",
    re.IGNORECASE,
)
_MATMUL_OPERATOR = re.compile(
    r"(aten|mkldnn|mkl|onednn)::_?"
    r"(mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|matmul|linear|linear_pointwise|mkl_linear"
    r"|mkldnn_linear|scaled_mm|grouped_mm|int_mm|\w*(convolution|conv[123]d|conv_transpose)\w*"
    r"|scaled_dot_product\w*|(flash|efficient|cudnn)_attention\w*)(_backward\w*)?$"
)


def is_matmul(kind: Kind, name: str) -> bool:
    """Say whether a kernel or operator is a matrix product, a convolution or attention."""
    if kind is Kind.KERNEL:
        return bool(_MATMUL_KERNEL.search(name))
    return kind is Kind.OPERATOR and bool(_MATMUL_OPERATOR.match(name))


_CONVOLUTION_KERNEL = re.compile(
    r"implicit_conv|convolve|conv2d|conv3d|convolution|winograd|wgrad|dgrad|fprop|miopen.*conv"
    r"|igemm",
    re.IGNORECASE,
)
_ATTENTION = re.compile(r"sdpa|flash|attention", re.IGNORECASE)  # cuDNN's has fprop in its name
_CONVOLUTION_OPERATOR = re.compile(
    r"(aten|mkldnn|onednn)::\w*(convolution|conv[123]d|conv_transpose)\w*$"
)


def is_convolution(kind: Kind, name: str) -> bool:
    """Say whether a kernel or operator is a convolution."""
    if kind is Kind.KERNEL:
        return bool(_CONVOLUTION_KERNEL.search(name)) and not _ATTENTION.search(name)
    return kind is Kind.OPERATOR and bool(_CONVOLUTION_OPERATOR.match(name))
