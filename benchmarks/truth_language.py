"""Host-clock truth of examples/language: where its steps' time goes, by perf_counter alone.

Runs the example's own corpus, model and train_step, and prints the mean milliseconds a step as
JSON: the figures that the breakdown of `aiak-tune profile` is compared with. The loop has no
DataLoader, so `get_batch_ms` is work of the host between steps, which no hook sees as a fetch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from pathlib import Path
from types import ModuleType

import torch

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "language" / "train.py"


def load_example(path: Path) -> ModuleType:
    """Import the example's train.py by its path."""
    spec = importlib.util.spec_from_file_location("example_language", path)
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
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options = example.parse_args(["--accumulation", str(args.accumulation)])
    corpus = example.Corpus(example.load_text(options.files), options.block_size)
    model = example.GPT(len(corpus.characters), options).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    fetches_s: list[float] = []
    rests_s: list[float] = []
    window_start = 0.0
    for step in range(args.warmup + args.steps):
        if step == args.warmup:
            synchronize(device)
            fetches_s, rests_s = [], []
            window_start = time.perf_counter()
        start = time.perf_counter()
        batches = [
            corpus.get_batch(corpus.train, options.batch_size, device)
            for _ in range(options.accumulation)
        ]
        fetched = time.perf_counter()
        example.train_step(model, optimizer, batches)
        fetches_s.append(fetched - start)
        rests_s.append(time.perf_counter() - fetched)
    synchronize(device)
    window_s = time.perf_counter() - window_start
    per_step_ms = 1e3 / args.steps
    return {
        "example": "language",
        "device": device.type,
        "threads": torch.get_num_threads(),
        "accumulation": options.accumulation,
        "steps": args.steps,
        "step_ms": window_s * per_step_ms,
        "data_wait_ms": 0.0,
        "get_batch_ms": sum(fetches_s) * per_step_ms,
        "rest_ms": sum(rests_s) * per_step_ms,
        "get_batch_samples_ms": [round(1e3 * fetch, 3) for fetch in fetches_s],
        "rest_samples_ms": [round(1e3 * rest, 3) for rest in rests_s],
    }


def main() -> None:
    """Print the measurement as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--example", type=Path, default=EXAMPLE, help="the train.py to time")
    args = parser.parse_args()
    print(json.dumps(measure(load_example(args.example), args)))


if __name__ == "__main__":
    main()
