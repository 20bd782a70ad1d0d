"""The facts about one job on one machine: the profile document as values.

Facts only: `optimizations` judge them. Field names are the document's
(docs/documents.md); `cls` stands for its key "class". Times end in `_ms`, shares are 0 to 1,
sizes are bytes. A value that was not measured is None and a warning says why.
Runs in the job too: standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aiak_tune.profiles.category import Category


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn:
    """Something the reader of a figure must know; `code` is stable, `text` is for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The root module: class name, number of parameters and of parameter tensors.

    `convolutions`: those in 2-D and 3-D; `channels_last`: the job laid all of them out so itself.
    """

    cls: str
    parameters: int
    parameter_tensors: int
    trainable_parameters: int = 0
    devices: tuple[str, ...] = ()
    convolutions: int | None = None
    channels_last: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """The optimizer that steps. `fused` is None where the class has no such option."""

    cls: str
    exact_class: bool = True
    fused: bool | None = None
    foreach: bool | None = None
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    parameters: int = 0
    capturable: bool = False
    differentiable: bool = False
    step_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderFacts:
    """The training loader as the job made it.

    `obstacles` says, a sentence each, why its settings must be left alone (open file handles,
    CUDA tensors in the dataset, an unsharded iterable …).
    """

    cls: str
    num_workers: int
    pin_memory: bool
    persistent_workers: bool
    prefetch_factor: int | None
    map_style: bool
    batch_bytes: int | None = None
    batches_per_epoch: int | None = None
    start_method: str | None = None
    on_device: bool = False
    obstacles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What the job is; the two fingerprints are described in profiles/fingerprint.py.

    `threads`: torch's own, within an operator; `threads_by`: how the job chose their number, None
    where it did not; `precision_by`: likewise float32's. `tf32`: a GPU's matrix products may be in
    TF32. `shapes_vary`: batches of several shapes went into the model.
    """

    fingerprint: str
    command: tuple[str, ...]
    name: str
    model_fingerprint: str | None = None
    model: ModelFacts | None = None
    optimizer: str | None = None
    optimizer_facts: OptimizerFacts | None = None
    batch_shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str | None = None
    loader: LoaderFacts | None = None
    ddp: bool = False
    amp: bool = False
    grad_scaler: bool = False
    compiled: bool = False
    seeded: bool = False
    shapes_vary: bool | None = None
    threads: int | None = None
    threads_by: str | None = None
    tf32: bool | None = None
    precision_by: str | None = None
    cudnn_benchmark: bool | None = None
    cudnn_benchmark_by: str | None = None
    deterministic: bool | None = None
    allocator_by: str | None = None
    device_requests: float | None = None
    page_faults: float | None = None
    affinity_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Where it ran, compared field by field when a plan is to be used elsewhere.

    `compiler`: a C++ compiler and Python's headers; `triton`: the package; for torch.compile.
    `mallocs`: other mallocs that are installed.
    """

    gpu: str | None = None
    gpu_count: int = 0
    compute_capability: tuple[int, int] | None = None
    gpu_memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    torch: str | None = None
    python: str | None = None
    cpu: str | None = None
    cores: int = 1
    ram_bytes: int | None = None
    nodes: int = 1
    ranks_per_node: int = 1
    link: str | None = None
    storage: str | None = None
    shm_free_bytes: int | None = None
    bf16_fast: bool | None = None
    compiler: bool | None = None
    triton: bool | None = None
    mallocs: tuple[str, ...] = ()
    numa_nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMs:
    """Statistics of step times in milliseconds."""

    mean: float
    median: float
    p05: float
    p95: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """The slice: how many steps of each kind, how long they took, what went through."""

    counted: int
    warmup: int
    profiled: int
    step_ms: StepMs
    samples_per_step: float | None
    samples_per_s: float | None
    profiler_inflation: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailMs:
    """What runs under something else, and how a category splits; None: not measured."""

    data_io: float | None = None
    data_cpu: float | None = None
    h2d_overlapped: float | None = None
    comm_overlapped: float | None = None
    comm_waiting: float | None = None
    gap_sync: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One rank's mean step, its breakdown, and what of comm waits for a later rank."""

    rank: int
    step_ms: float
    breakdown_ms: Mapping[Category, float] | None = None
    comm_waiting_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadProfile:
    """A profile: top-level figures are those of the slowest rank, which sets the job's pace.

    `slowest_rank`: the one with the longest step, waiting for other ranks left out.
    """

    job: JobFacts
    environment: Environment
    steps: StepFacts
    breakdown_ms: Mapping[Category, float] | None = None
    detail_ms: DetailMs = field(default_factory=DetailMs)
    ranks: tuple[RankFacts, ...] = ()
    slowest_rank: int | None = None
    matmul_share: float | None = None
    fp32_matmul_share: float | None = None
    convolution_share: float | None = None
    memory_bytes: int | None = None
    warnings: tuple[Warn, ...] = ()

    def share(self, category: Category) -> float:
        """Return the category's share of the step, 0 where there is no breakdown."""
        if self.breakdown_ms is None or self.steps.step_ms.mean <= 0:
            return 0.0
        return self.breakdown_ms.get(category, 0.0) / self.steps.step_ms.mean

    @property
    def on_gpu(self) -> bool:
        """Whether the model's parameters live on a GPU."""
        return self.job.model is not None and any(d != "cpu" for d in self.job.model.devices)
