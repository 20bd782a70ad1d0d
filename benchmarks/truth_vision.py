"""Host-clock truth of examples/vision: where its steps' time goes, by perf_counter alone.

Runs the example's own loader, model and train_step, and prints the mean milliseconds a step as
JSON: the figures that the breakdown of `aiak-tune profile` is compared with.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import time
from pathlib import Path
from types import ModuleType

import torch

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "vision" / "train.py"


def load_example(path: Path) -> ModuleType:
    """Import the example's train.py by its path."""
    spec = importlib.util.spec_from_file_location("example_vision", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that a window begins and ends with its work done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(example: ModuleType, args: argparse.Namespace) -> dict[str, object]:
    """Time the phases of the steps after warm-up."""
    torch.manual_seed(0)
    random.seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options = example.parse_args([])
    dataset = example.PictureDataset(args.data or options.data, options.image_size, train=True)
    loader = example.build_loader(dataset, args.batch_size or options.batch_size)
    model = example.build_model(len(dataset.labels)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    batches = iter(loader)
    waits_s: list[float] = []
    rests_s: list[float] = []
    restart_s = 0.0
    window_start = 0.0
    for step in range(args.warmup + args.steps):
        if step == args.warmup:
            synchronize(device)
            waits_s, rests_s, restart_s = [], [], 0.0
            window_start = time.perf_counter()
        start = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            restarted = time.perf_counter()
            restart_s += restarted - start
            start = restarted
            batch = next(batches)
        fetched = time.perf_counter()
        example.train_step(model, optimizer, batch, device)
        waits_s.append(fetched - start)
        rests_s.append(time.perf_counter() - fetched)
    synchronize(device)
    window_s = time.perf_counter() - window_start
    per_step_ms = 1e3 / args.steps
    return {
        "example": "vision",
        "device": device.type,
        "threads": torch.get_num_threads(),
        "workers": loader.num_workers,
        "steps": args.steps,
        "step_ms": window_s * per_step_ms,
        "data_wait_ms": sum(waits_s) * per_step_ms,
        "loader_restart_ms": restart_s * per_step_ms,
        "rest_ms": sum(rests_s) * per_step_ms,
        "data_wait_share": sum(waits_s) / window_s,
        "data_wait_samples_ms": [round(1e3 * wait, 3) for wait in waits_s],
        "rest_samples_ms": [round(1e3 * rest, 3) for rest in rests_s],
    }


def main() -> None:
    """Print the measurement as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--batch-size", type=int, help="the example's own by default")
    parser.add_argument("--data", type=Path, help="the example's own folder by default")
    parser.add_argument("--example", type=Path, default=EXAMPLE, help="the train.py to time")
    args = parser.parse_args()
    print(json.dumps(measure(load_example(args.example), args)))


if __name__ == "__main__":
    main()
