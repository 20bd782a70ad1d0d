"""Record two ranks on gloo, of which rank 1 sleeps 20 ms a step: `python record_cpu_ddp.py DIR`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

STRAGGLE_S = 0.02


def rank_main(rank: int, folder: str) -> None:
    """Train 3 profiled steps and write this rank's trace."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    layers = torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(32, 256)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=schedule) as profiler:
        for _ in range(5):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            time.sleep(STRAGGLE_S * rank)
            profiler.step()
    profiler.export_chrome_trace(f"{folder}/cpu_ddp_rank{rank}.pt.trace.json.gz")
    distributed.destroy_process_group()


if __name__ == "__main__":
    spawn(rank_main, args=(sys.argv[1],), nprocs=2)
    (Path(sys.argv[1]) / "rendezvous").unlink(missing_ok=True)
