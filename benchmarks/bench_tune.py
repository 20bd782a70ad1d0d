"""Measures what `tune` promises: the rows of docs/results/tune.json but the A/A ones (aa.py).

Parts: demo (the README's tuning, then whole jobs with and without its plan, in turn), overhead
(agent_overhead.py), startup, help, truth (the examples' breakdown against their host clock).
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from results import ROOT, add_rows, row

PYTHON = sys.executable
TUNE = [PYTHON, "-m", "aiak_tune"]
VISION = [PYTHON, str(ROOT / "examples" / "vision" / "train.py")]
LANGUAGE = [PYTHON, str(ROOT / "examples" / "language" / "train.py")]


def seconds(command: Sequence[str], environment: dict[str, str] | None = None) -> float:
    """Return the wall time of a command that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True, cwd=ROOT)
    return time.perf_counter() - began


def in_turn(runs: int, *each: Callable[[], float]) -> list[list[float]]:
    """Call each in turn, the order reversed every other time; return a list of figures a call."""
    found: list[list[float]] = [[] for _ in each]
    for number in range(runs):
        order = list(enumerate(each))
        for place, call in order if number % 2 == 0 else reversed(order):
            found[place].append(call())
    return found


def demo(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """The README's tuning of examples/vision; then the whole job as written and with the plan."""
    plan, document = folder / "plan.json", folder / "tuning.json"
    if not (ROOT / "examples" / "vision" / "data").exists():
        seconds([PYTHON, str(ROOT / "examples" / "vision" / "make_data.py")])
    command = [*TUNE, "tune", "--trials", "6", "--plan", str(plan), "--json", str(document)]
    took = seconds([*command, "--", *VISION])
    tuning = json.loads(document.read_text())
    runs = tuning["confirmation"]
    inside = sum(t["duration_s"] for t in tuning["trials"]) + sum(r["duration_s"] for r in runs)
    starts = len(tuning["trials"]) + len(runs)
    rows = [
        row("tool_share", [(took - inside) / took], unit="of the tuning",
            note=f"of a tuning of {took:.0f} s with {starts} starts of the job"),
        row("demo_seconds", [took], unit="s", note=f"{starts} starts; set-up apart"),
    ]  # fmt: skip
    best = tuning["best"]
    if best is None:
        nothing = row("demo_speedup", [1.0], unit="times", against="the job as written",
                      note=f"no plan: {tuning['verdict']}, {tuning['verdict_reason']}")  # fmt: skip
        return [*rows, nothing]
    rate = {(r["pair"], r["side"]): r["samples_per_s"] for r in runs}
    pairs = sorted({p for p, side in rate if side == "best"})
    ratios = [rate[p, "best"] / rate[p, "baseline"] for p in pairs]
    settings = json.dumps(best["settings"])
    rows.append(
        row("demo_speedup", ratios, unit="times", statistic="geomean",
            against="the job as written", interval=tuple(best["ci95"]),
            note=f"{settings}; fresh processes in turn; the interval is the sequential test's")
    )  # fmt: skip
    return [*rows, *whole_jobs(plan, quick)]


def whole_jobs(plan: Path, quick: bool) -> list[dict[str, Any]]:
    """The whole job as written and with the plan: by the wall clock, and by the job's own."""
    command = [*VISION, "--epochs", "2" if quick else "4"]
    own: dict[str, list[float]] = {"plain": [], "tuned": []}

    def timed(side: str, start: list[str]) -> float:
        began = time.perf_counter()
        made = subprocess.run(start, check=True, capture_output=True, text=True, cwd=ROOT)
        took = time.perf_counter() - began
        own[side].append(float(made.stdout.splitlines()[-1].split()[-2]))  # "… after 36.4 s"
        return took

    plain, tuned = in_turn(
        2 if quick else 5,
        lambda: timed("plain", command),
        lambda: timed("tuned", [*TUNE, "run", "--plan", str(plan), "--", *command]),
    )
    note = (
        f"jobs of {command[-1]} epochs in turn, {min(plain):.0f} to {max(plain):.0f} s as written"
    )
    return [
        row("demo_whole_job_speedup", [a / b for a, b in zip(plain, tuned, strict=True)],
            unit="times", statistic="geomean", against="the job as written",
            note=f"start-up, imports and evaluation in it: {note}"),
        row("demo_whole_training_speedup",
            [a / b for a, b in zip(own["plain"], own["tuned"], strict=True)],
            unit="times", statistic="geomean", against="the job as written",
            note=f"by the job's own clock, evaluation in it, start-up not: {note}"),
    ]  # fmt: skip


def startup(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """A process that imports torch, with the agent and without; and below the supervisor."""
    from aiak_tune.agent.spec import RunSpec, SlicePlan
    from aiak_tune.selector.launch import job_environment

    # As pip leaves an installed package, whatever PYTHONDONTWRITEBYTECODE says here.
    for layer in ("agent", "ops", "optimizations", "profiles", "src", "selector"):
        compileall.compile_dir(ROOT / layer, quiet=2)
    run_dir = folder / "startup"
    run_dir.mkdir()
    spec = RunSpec(run_dir=str(run_dir), slice=SlicePlan())
    (run_dir / "spec.json").write_text(spec.dump())
    agent = job_environment(run_dir, {})
    job = [PYTHON, "-c", "import torch"]
    supervisor = [
        PYTHON,
        "-I",
        "-S",
        str(ROOT / "selector" / "supervisor.py"),
        str(run_dir),
        str(os.getpid()),
        "--",
    ]
    plain, armed, supervised = in_turn(
        5 if quick else 15,
        lambda: seconds(job),
        lambda: seconds(job, agent),
        lambda: seconds([*supervisor, *job], agent),
    )
    return [
        row("startup_added_ms", [1e3 * (b - a) for a, b in zip(plain, armed, strict=True)],
            unit="ms", against="python -c 'import torch'",
            note="bootstrap and agent in a slice; pairs in turn"),
        row("startup_added_supervised_ms",
            [1e3 * (b - a) for a, b in zip(plain, supervised, strict=True)],
            unit="ms", against="python -c 'import torch'", note="the same, with the supervisor"),
    ]  # fmt: skip


def help_time(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """The command's help."""
    took = [seconds([*TUNE, "--help"]) for _ in range(5 if quick else 15)]
    return [row("help_s", took, unit="s", note="python -m aiak_tune --help, a process each")]


def overhead(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """What the agent adds to a step outside the profiled ones."""
    script = [PYTHON, str(ROOT / "benchmarks" / "agent_overhead.py")]
    found = subprocess.run(script, check=True, capture_output=True, text=True, cwd=ROOT)
    units = {"us": "µs a step", "share": "of the step"}
    return [
        row(r["name"], r["samples"], unit=units[r["unit"]], statistic="mean",
            against=r["against"], note=r["note"])
        for r in json.loads(found.stdout)["rows"]
    ]  # fmt: skip


def truth(folder: Path, quick: bool) -> list[dict[str, Any]]:
    """The wait for data in a profile against the job's own clock, runs of each in turn."""
    rows = []
    for name, job in (("vision", VISION), ("language", LANGUAGE)):
        clock = [PYTHON, str(ROOT / "benchmarks" / f"truth_{name}.py")]

        def profiled(job: Sequence[str] = job) -> float:
            place = folder / "profile.json"
            seconds([*TUNE, "profile", "--json", str(place), "--", *job])
            found = json.loads(place.read_text())
            return found["breakdown_ms"]["data_wait"] / found["steps"]["step_ms"]["mean"]

        def clocked(clock: Sequence[str] = clock) -> float:
            made = subprocess.run(clock, check=True, capture_output=True, text=True, cwd=ROOT)
            told = json.loads(made.stdout)
            return told["data_wait_ms"] / told["step_ms"]

        shown, true = in_turn(2 if quick else 5, profiled, clocked)
        rows.append(
            row(f"breakdown_error_share_{name}", [a - b for a, b in zip(shown, true, strict=True)],
                unit="of the step", against="perf_counter around next() in the same loop",
                note="difference of data_wait's shares; separate processes, in turn")
        )  # fmt: skip
    return rows


PARTS = {"help": help_time, "startup": startup, "overhead": overhead, "truth": truth, "demo": demo}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="fewer repeats; nothing is written")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="aiak-bench-"))
    os.environ["XDG_DATA_HOME"] = str(folder)
    chosen = args.parts or (["help", "startup"] if args.quick else list(PARTS))
    try:
        for part in chosen:
            rows = PARTS[part](folder, args.quick)
            for each in rows:
                print(json.dumps({k: v for k, v in each.items() if k != "samples"}), flush=True)
            if not args.quick:
                add_rows("tune", rows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
