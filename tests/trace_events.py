"""Hand-made trace events, for tests of reading and attribution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from aiak_tune.profiles.trace import Trace, trace_of
from aiak_tune.profiles.trace_read import Document

Event = Mapping[str, Any]


def event(
    category: str, name: str, start_us: float, end_us: float, *, thread: int = 1, **args: Any
) -> Event:
    """One complete event as the profiler writes it."""
    times = {"ts": start_us, "dur": end_us - start_us}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        **times,
        "args": args,
    }


def step(number: int, start_us: float, end_us: float) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start_us, end_us)


def fetch(start_us: float, end_us: float) -> Event:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    return event("user_annotation", name, start_us, end_us)


def operator(start_us: float, end_us: float, name: str = "aten::mul", *, thread: int = 1) -> Event:
    return event("cpu_op", name, start_us, end_us, thread=thread)


def kernel(start_us: float, end_us: float, name: str = "elementwise_kernel") -> Event:
    return event("kernel", name, start_us, end_us, thread=7)


def collective(start_us: float, end_us: float) -> Event:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)"
    return event("kernel", name, start_us, end_us, thread=20)


def copy_in(start_us: float, end_us: float, correlation: int) -> Event:
    name = "Memcpy HtoD (Pageable -> Device)"
    return event("gpu_memcpy", name, start_us, end_us, thread=7, correlation=correlation)


def call(name: str, start_us: float, end_us: float, correlation: int = 0) -> Event:
    return event("cuda_runtime", name, start_us, end_us, correlation=correlation)


def document(events: Iterable[Event], **top: Any) -> dict[str, Any]:
    """A whole file's content, rank 0 of 1."""
    info = {"rank": 0, "world_size": 1}
    return {"distributedInfo": info, "traceEvents": list(events), **top}


def trace(events: Iterable[Event], **top: Any) -> Trace:
    """The events as `read_trace` gives them."""
    return trace_of(msgspec.convert(document(events, **top), Document))
