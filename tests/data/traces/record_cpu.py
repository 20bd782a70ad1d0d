"""Record the CPU traces beside this file with their host-clock truth: `python record_cpu.py DIR`.

Each job runs 4 profiled steps under ProfilerStep marks; cpu_truth.json holds, a step, the wall
time and the time inside `next(loader)` by time.perf_counter, milliseconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

STEPS = 4


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that take `sleep_s` each to make."""

    def __init__(self, sleep_s: float) -> None:
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(self.sleep_s)
        return torch.full((256,), float(index)), torch.zeros(256)


def record(folder: Path, name: str, *, sleep_s: float, workers: int, log_s: float) -> object:
    """Profile one job and return its truth."""
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = iter(DataLoader(Samples(sleep_s), batch_size=16, num_workers=workers))
    step_ms: list[float] = []
    fetch_ms: list[float] = []
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=STEPS, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
        for step in range(3 + STEPS):
            begin = time.perf_counter()
            x, y = next(loader)
            fetched = time.perf_counter()
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(log_s)
            end = time.perf_counter()
            profiler.step()
            if step >= 3:
                step_ms.append(1e3 * (end - begin))
                fetch_ms.append(1e3 * (fetched - begin))
    profiler.export_chrome_trace(str(folder / f"{name}.pt.trace.json.gz"))
    return {"trace": name, "step_ms": step_ms, "fetch_ms": fetch_ms, "log_ms": 1e3 * log_s}


def main(folder: Path) -> None:
    """Record every job."""
    torch.set_num_threads(1)
    truth = [
        record(folder, "cpu_input_bound", sleep_s=0.001, workers=0, log_s=0),
        record(folder, "cpu_plain", sleep_s=0, workers=0, log_s=0),
        record(folder, "cpu_workers", sleep_s=0.002, workers=2, log_s=0),
        record(folder, "cpu_logging", sleep_s=0, workers=0, log_s=0.01),
    ]
    (folder / "cpu_truth.json").write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
