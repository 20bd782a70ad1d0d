"""cuDNN-benchmark: for each convolution cuDNN tries its algorithms once and keeps the fastest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aiak_tune.optimizations.base import (
    Applied,
    Example,
    Finding,
    NoEffectError,
    Numerics,
    Optimization,
    Params,
    Stage,
)
from aiak_tune.optimizations.examples import ON_CPU, PLAIN
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import JobFacts, WorkloadProfile


def _job(**changes: Any) -> WorkloadProfile:
    job = replace(PLAIN.job, **{"shapes_vary": False} | changes)
    return replace(PLAIN, job=job, convolution_share=0.24)


class CudnnBenchmark(Optimization):
    """Have cuDNN choose by trial in place of by rule; the first step of each shape pays for it."""

    name = "cudnn-benchmark"
    summary = "cuDNN's convolution algorithms by trial, not by rule"
    stage = Stage.PROCESS
    level = 0
    addresses = frozenset({Category.COMPUTE})
    space = {"benchmark": (True,)}
    conflicts = frozenset[str]()
    examples = (
        Example(profile=_job(), fits=True),
        Example(profile=_job(shapes_vary=True), fits=False),
        Example(profile=_job(cudnn_benchmark=True), fits=False),
        Example(profile=_job(deterministic=True), fits=False),
        Example(profile=ON_CPU, fits=False),
    )

    def numerics(self, profile: WorkloadProfile, params: Params) -> Numerics:
        """Other algorithms for the same sums, in the same precision."""
        return Numerics.LOSSLESS

    def check(self, profile: WorkloadProfile) -> Finding:
        """Fit convolutions on a GPU over batches that keep their shape."""
        model = profile.job.model
        if model is None or model.convolutions is None:
            return Finding(fits=False, reason="it is not known whether the model has convolutions")
        refusal = None
        if not model.convolutions:
            refusal = "the model has no 2-D or 3-D convolution"
        elif not profile.on_gpu:
            refusal = "the model computes on the CPU, where there is no cuDNN"
        refusal = refusal or refuse(profile.job)
        if refusal is not None:
            return Finding(fits=False, reason=refusal)
        what = f"cuDNN chooses the algorithms of {model.convolutions} convolutions by rule"
        share = profile.convolution_share
        if share is None:
            return Finding(fits=True, reason=what)
        reason = f"{what}; they take {share:.0%} of the step"
        bound = 1 / (1 - share) if share < 1 else None
        return Finding(fits=share > 0, reason=reason, bound=bound)

    def apply(self, target: Any, params: Params) -> Applied | None:
        """Switch it on; see `benchmark`."""
        return benchmark()

    def by_hand(self, params: Params) -> str:
        """Set torch's own switch."""
        return "import torch\n\ntorch.backends.cudnn.benchmark = True\n"


def refuse(job: JobFacts) -> str | None:
    """Return why cuDNN is left to choose by rule, None when it may try."""
    if job.deterministic:
        return "the job asks for deterministic algorithms, and what is fastest differs by the run"
    if job.cudnn_benchmark:
        return "the job has cuDNN try its algorithms already"
    if job.cudnn_benchmark_by is not None:
        return f"the job chose by {job.cudnn_benchmark_by}"
    if job.shapes_vary is None:
        return "it is not known whether the batches keep their shape"
    if job.shapes_vary:
        return "batches come in several shapes, and cuDNN would try all algorithms for each"
    return None


def benchmark() -> Applied | None:
    """Have cuDNN try its algorithms; None where it does or is not there. For use by hand too.

    Gives way to the job's own choice, also that of deterministic algorithms.
    """
    import torch

    from aiak_tune.ops import switches

    cudnn = torch.backends.cudnn
    if cudnn.benchmark or not cudnn.is_available():
        return None
    if cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
        raise NoEffectError("the job asks for deterministic algorithms")

    def put(on: bool) -> None:
        cudnn.benchmark = on

    setting = switches.Setting(put, switches.BENCHMARK, switches.DETERMINISTIC)

    def effect() -> str | None:
        if setting.chosen_by is not None:
            raise NoEffectError(f"the job chose by {setting.chosen_by}, and was left alone")
        if not torch.cuda.is_initialized() or not cudnn.enabled:
            return None  # no convolution ran by cuDNN
        if not cudnn.benchmark:
            raise NoEffectError("it was switched off")
        return f"cuDNN {cudnn.version()} chose its algorithms by trial"

    return Applied(undo=setting.undo, effect=effect)
