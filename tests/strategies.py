"""Hypothesis strategies for values that cross the layers."""

from __future__ import annotations

from hypothesis import strategies as st

from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import (
    DetailMs,
    Environment,
    JobFacts,
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    RankFacts,
    StepFacts,
    StepMs,
    WorkloadProfile,
)

MS = st.floats(min_value=0.0, max_value=1e5, allow_nan=False)
SHARES = st.floats(min_value=0.0, max_value=1.0, allow_nan=False)
SIZES = st.integers(min_value=0, max_value=2**45)
DTYPES = st.sampled_from(["float32", "bfloat16", "float16", "float64", "complex64"])
DEVICES = st.sampled_from(["cpu", "cuda:0", "cuda:1"])


def optional(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """The strategy's values, or None for what was not measured."""
    return st.none() | strategy


def loaders() -> st.SearchStrategy[LoaderFacts]:
    """Loaders as a job may have made them; the settings agree with each other."""

    def build(workers: int, prefetch: int, persistent: bool, **rest: object) -> LoaderFacts:
        return LoaderFacts(
            num_workers=workers,
            prefetch_factor=prefetch if workers else None,
            persistent_workers=persistent and workers > 0,
            **rest,  # type: ignore[arg-type]
        )

    return st.builds(
        build,
        workers=st.integers(0, 40),
        prefetch=st.integers(1, 8),
        persistent=st.booleans(),
        cls=st.sampled_from(["DataLoader", "DataLoaderShard"]),
        pin_memory=st.booleans(),
        map_style=st.booleans(),
        batch_bytes=optional(SIZES),
        batches_per_epoch=optional(st.integers(0, 10**6)),
        start_method=st.sampled_from([None, "fork", "spawn", "forkserver"]),
        on_device=st.booleans(),
        obstacles=st.lists(st.just("dataset.file is an open file"), max_size=2).map(tuple),
    )


def optimizers() -> st.SearchStrategy[OptimizerFacts]:
    """Optimizers of torch and of others."""
    return st.builds(
        OptimizerFacts,
        cls=st.sampled_from(["Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "Lion"]),
        exact_class=st.booleans(),
        fused=st.none() | st.booleans(),
        foreach=st.none() | st.booleans(),
        dtypes=st.lists(DTYPES, max_size=3, unique=True).map(tuple),
        devices=st.lists(DEVICES, max_size=3, unique=True).map(tuple),
        parameters=st.integers(0, 10**4),
        capturable=st.booleans(),
        differentiable=st.booleans(),
        step_ms=optional(MS),
    )


def jobs() -> st.SearchStrategy[JobFacts]:
    """Jobs with much, little or nothing known of them."""
    return st.builds(
        JobFacts,
        fingerprint=st.just("job1:any"),
        command=st.just(("python", "train.py")),
        name=st.just("train.py"),
        model=st.none()
        | st.builds(
            ModelFacts,
            cls=st.just("Net"),
            parameters=SIZES,
            parameter_tensors=st.integers(0, 10**4),
            devices=st.lists(DEVICES, max_size=2, unique=True).map(tuple),
            convolutions=optional(st.integers(0, 200)),
            channels_last=st.none() | st.booleans(),
        ),
        optimizer_facts=st.none() | optimizers(),
        dtype=st.none() | DTYPES,
        loader=st.none() | loaders(),
        ddp=st.booleans(),
        amp=st.booleans(),
        grad_scaler=st.booleans(),
        compiled=st.booleans(),
        seeded=st.booleans(),
        shapes_vary=st.none() | st.booleans(),
        threads=optional(st.integers(1, 512)),
        threads_by=st.sampled_from([None, "OMP_NUM_THREADS=4", "torch.set_num_threads"]),
        tf32=st.none() | st.booleans(),
        precision_by=st.sampled_from([None, "torch.set_float32_matmul_precision"]),
        cudnn_benchmark=st.none() | st.booleans(),
        cudnn_benchmark_by=st.sampled_from([None, "torch.backends.cudnn.benchmark"]),
        deterministic=st.none() | st.booleans(),
        allocator_by=st.sampled_from([None, "LD_PRELOAD=libjemalloc.so.2"]),
        device_requests=optional(MS),
        page_faults=optional(MS),
        affinity_by=st.sampled_from([None, "OMP_PLACES=cores", "on 4 of 16 cores"]),
    )


def environments() -> st.SearchStrategy[Environment]:
    """Machines from one core to many."""
    return st.builds(
        Environment,
        gpu_count=st.integers(0, 8),
        compute_capability=st.sampled_from([None, (7, 5), (8, 0), (9, 0)]),
        cores=st.integers(1, 256),
        nodes=st.integers(1, 4),
        ranks_per_node=st.integers(1, 8),
        shm_free_bytes=optional(SIZES),
        bf16_fast=st.none() | st.booleans(),
        compiler=st.none() | st.booleans(),
        triton=st.none() | st.booleans(),
        numa_nodes=optional(st.integers(1, 8)),
        mallocs=st.sampled_from([(), ("libjemalloc.so.2",)]),
    )


@st.composite
def profiles(draw: st.DrawFn) -> WorkloadProfile:
    """Profiles whose categories sum to the step, or without a breakdown; any job and machine."""
    measured = draw(st.none() | st.lists(MS, min_size=6, max_size=6))
    breakdown = None if measured is None else dict(zip(Category, measured, strict=True))
    step_ms = draw(MS) if measured is None else sum(measured)
    steps = StepFacts(
        counted=draw(st.integers(0, 200)),
        warmup=12,
        profiled=4,
        step_ms=StepMs(mean=step_ms, median=step_ms, p05=step_ms, p95=step_ms),
        samples_per_step=64.0,
        samples_per_s=64.0e3 / step_ms if step_ms > 0 else None,
    )
    return WorkloadProfile(
        job=draw(jobs()),
        environment=draw(environments()),
        steps=steps,
        breakdown_ms=breakdown,
        detail_ms=draw(st.builds(DetailMs, data_io=optional(MS), data_cpu=optional(MS))),
        ranks=(RankFacts(rank=0, step_ms=step_ms, breakdown_ms=breakdown),),
        matmul_share=draw(st.none() | SHARES),
        fp32_matmul_share=draw(st.none() | SHARES),
        convolution_share=draw(st.none() | SHARES),
    )
