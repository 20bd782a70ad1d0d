"""Does the job with the lines of `aiak-tune explain` in it run as fast as under the plan?

Whole jobs of examples/vision in turn: as written, under `run --plan`, and a copy with the printed
lines. By the job's own clock (evaluation in it, start-up not), since a speed-up is of the steps.
Writes the rows explain_* of docs/results/tune.json; `explain_share` should be at least 0.95.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench_tune import PYTHON, TUNE, VISION, in_turn, seconds
from results import ROOT, add_rows, row

EXAMPLE = ROOT / "examples" / "vision" / "train.py"
DATA = ROOT / "examples" / "vision" / "data"
# The last of model, optimizer and loader to be made.
MADE = "    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)\n"


def make_plan(folder: Path) -> Path:
    """Tune the example as the README does; a tuning without a gain has nothing to explain."""
    plan = folder / "plan.json"
    seconds([*TUNE, "tune", "--trials", "6", "--plan", str(plan), "--", *VISION])
    if not plan.exists():
        raise SystemExit("no plan: nothing was proven faster here")
    return plan


def explained(plan: Path) -> dict[str, Any]:
    """Return the document of `explain`."""
    command = [*TUNE, "explain", str(plan), "--json", "-"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return dict(json.loads(done.stdout))


def by_hand(document: dict[str, Any]) -> str:
    """Return the example with the lines where `explain` says that they go."""
    script = document["script"]
    inside = "".join(f"    {line}\n" if line else "\n" for line in script["lines"].splitlines())
    example = EXAMPLE.read_text()
    for place in ("import torch\n", MADE):
        assert example.count(place) == 1, f"the example has changed: {place!r}"
    example = example.replace("import torch\n", f"import torch\n{script['imports']}")
    return example.replace(MADE, f"{MADE}    loader = train_loader\n{inside}")


def variables(document: dict[str, Any]) -> dict[str, str]:
    """Return the environment with what the shell's lines export."""
    shell = f"{document['shell']['lines']}\nenv -0"
    told = subprocess.run(["sh", "-c", shell], check=True, capture_output=True, text=True).stdout
    return dict(entry.split("=", 1) for entry in told.split("\0") if entry)


def own_seconds(command: list[str], environment: dict[str, str] | None = None) -> float:
    """Return what the job's last line says: `epoch 3 accuracy 0.9 after 36.4 s`."""
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    return float(done.stdout.splitlines()[-1].split()[-2])


def measure(plan: Path, folder: Path, *, rounds: int, epochs: int) -> list[dict[str, Any]]:
    """Return the rows of so many rounds."""
    document = explained(plan)
    edited = folder / "by_hand.py"
    edited.write_text(by_hand(document))
    options = ["--epochs", str(epochs), "--data", str(DATA)]
    job, exported = [*VISION, *options], variables(document)
    plain, tuned, hand = in_turn(
        rounds,
        lambda: own_seconds(job),
        lambda: own_seconds([*TUNE, "run", "--plan", str(plan), "--", *job]),
        lambda: own_seconds([PYTHON, str(edited), *options], exported),
    )
    settings = json.dumps({s["optimization"]: s["params"] for s in document["settings"]})
    note = (
        f"{settings}; {rounds} rounds in turn of {epochs} epochs, {min(plain):.1f} to "
        f"{max(plain):.1f} s as written; the job's own clock"
    )
    sides = {
        "explain_plan_speedup": (plain, tuned, "the job as written"),
        "explain_by_hand_speedup": (plain, hand, "the job as written"),
        "explain_share": (tuned, hand, "run --plan"),
    }
    return [
        row(name, [a / b for a, b in zip(over, under, strict=True)], unit="times",
            statistic="geomean", against=against, note=note)
        for name, (over, under, against) in sides.items()
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, help="of examples/vision here; else one is made")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="2 rounds of 1; nothing is written")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="aiak-bench-"))
    os.environ["XDG_DATA_HOME"] = str(folder)
    try:
        if not DATA.exists():
            seconds([PYTHON, str(EXAMPLE.with_name("make_data.py"))])
        plan = args.plan.resolve() if args.plan else make_plan(folder)
        rounds, epochs = (2, 1) if args.quick else (args.rounds, args.epochs)
        rows = measure(plan, folder, rounds=rounds, epochs=epochs)
        for each in rows:
            print(json.dumps({k: v for k, v in each.items() if k != "samples"}), flush=True)
        if not args.quick:
            add_rows("tune", rows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
