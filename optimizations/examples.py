"""`PLAIN`: an ordinary job, from which the entries make their examples with `replace`."""

from __future__ import annotations

from dataclasses import replace

from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import (
    DetailMs,
    Environment,
    JobFacts,
    LoaderFacts,
    ModelFacts,
    OptimizerFacts,
    StepFacts,
    StepMs,
    WorkloadProfile,
)

# One that the job made without a word on workers, and of which nothing was measured.
LOADER = LoaderFacts(
    cls="DataLoader",
    num_workers=0,
    pin_memory=False,
    persistent_workers=False,
    prefetch_factor=None,
    map_style=True,
)

# A float32 ResNet-50 on one GPU, fed by the main process: half of its step waits for data.
PLAIN = WorkloadProfile(
    job=JobFacts(
        fingerprint="job1:plain",
        command=("python", "train.py"),
        name="train.py",
        model_fingerprint="model1:plain",
        model=ModelFacts(
            cls="ResNet",
            parameters=25_557_032,
            parameter_tensors=161,
            trainable_parameters=25_557_032,
            devices=("cuda:0",),
            convolutions=53,
            channels_last=False,
        ),
        optimizer="AdamW",
        optimizer_facts=OptimizerFacts(
            cls="AdamW",
            fused=False,
            foreach=False,
            dtypes=("float32",),
            devices=("cuda:0",),
            parameters=161,
            step_ms=4.0,
        ),
        batch_shapes=((64, 3, 224, 224), (64,)),
        dtype="float32",
        loader=replace(LOADER, batch_bytes=38_535_680, batches_per_epoch=500, start_method="fork"),
        seeded=True,
    ),
    environment=Environment(
        gpu="NVIDIA H200",
        gpu_count=1,
        compute_capability=(9, 0),
        gpu_memory_bytes=150_754_820_096,
        torch="2.13.0",
        python="3.12.3",
        cores=16,
        ram_bytes=137_438_953_472,
        shm_free_bytes=68_719_476_736,
        compiler=True,
        triton=True,
    ),
    steps=StepFacts(
        counted=20,
        warmup=10,
        profiled=4,
        step_ms=StepMs(mean=61.0, median=60.7, p05=58.9, p95=64.2),
        samples_per_step=64.0,
        samples_per_s=1049.2,
    ),
    breakdown_ms={
        Category.DATA_WAIT: 31.2,
        Category.H2D: 0.9,
        Category.COMPUTE: 22.4,
        Category.COMM: 0.0,
        Category.GAP: 6.1,
        Category.HOST: 0.4,
    },
    detail_ms=DetailMs(data_io=3.1, data_cpu=28.1),
    matmul_share=0.25,
    fp32_matmul_share=0.25,
)


def fed_by(loader: LoaderFacts | None, shm_free_bytes: int | None = None) -> WorkloadProfile:
    """Return the plain profile with another loader."""
    environment = replace(PLAIN.environment, shm_free_bytes=shm_free_bytes)
    return replace(PLAIN, job=replace(PLAIN.job, loader=loader), environment=environment)


# The same model on the CPUs of that machine.
ON_CPU = replace(
    PLAIN,
    job=replace(
        PLAIN.job,
        model=replace(PLAIN.job.model, devices=("cpu",)) if PLAIN.job.model else None,
        threads=16,
    ),
    environment=replace(
        PLAIN.environment, gpu=None, gpu_count=0, compute_capability=None, gpu_memory_bytes=None
    ),
)
