"""Both displays of a running tuning: the live one, and a line for each event."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from contracts.example_tuning import example_tuning
from rich.console import Console

from aiak_tune.cli.board import Board, confirmed_text
from aiak_tune.cli.progress import HEARTBEAT_S, Lines, LiveDisplay, reporting
from aiak_tune.selector.progress import Progress
from aiak_tune.selector.reporter import Reporter
from aiak_tune.selector.results import ConfirmationRun

TUNING = example_tuning()
HOSTILE = "[bold]x\x1b[2J\r\n\u202e[/]"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _run(pair: int, side: str, rate: float | None, problem: str | None = None) -> ConfirmationRun:
    return ConfirmationRun(
        pair=pair,
        side=side,  # type: ignore[arg-type]
        settings={},
        samples_per_s=rate,
        step_ms=None,
        duration_s=1.0,
        problem=problem,
    )


def _console(width: int = 80, *, terminal: bool = False) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, height=24, markup=False, emoji=False, highlight=False,
        force_terminal=terminal, color_system=None, legacy_windows=False,
    )  # fmt: skip
    return console, stream


def _tell(reporter: Reporter, clock: Clock) -> None:
    """A whole tuning: 20 s a start."""
    assert TUNING.profile is not None
    reporter.cost(starts=26, seconds_each=None)
    reporter.started("baseline", {})
    clock.now += 20
    reporter.trial_ended(TUNING.trials[0], baseline=1049.2)
    reporter.profiled(TUNING.profile, TUNING.findings)
    reporter.cost(starts=25, seconds_each=20.0)
    for trial in TUNING.trials[1:]:
        reporter.started(f"trial {trial.number}", trial.settings)
        reporter.progressed(Progress(phase="counting", counted=7, step=19), wanted=20)
        clock.now += 20
        reporter.trial_ended(trial, baseline=1049.2)
    reporter.started("confirmation run 1: baseline", {})
    clock.now += 20
    reporter.confirmed([_run(0, "baseline", 1049.2), _run(0, "best", 4830.0)], "first pairs")
    reporter.note(HOSTILE)


def _lines(clock: Clock) -> list[str]:
    console, stream = _console()
    _tell(Lines(Board(clock), console), clock)
    return stream.getvalue().splitlines()


def test_without_a_terminal_each_event_is_one_plain_line(clock: Clock) -> None:
    assert _lines(clock)[:7] == [
        "[  0:00] To come: at most 26 starts of the job; the first shows how long one takes",
        "[  0:00] baseline: as written",
        "[  0:20] as written: 1,049 samples/s, 61.0 ms a step "
        "(51% data_wait, 37% compute, 10% gap, 1% h2d, 1% host)",
        "[  0:20] fits: data-workers (at most 2.05×)",
        "[  0:20] To come: at most 25 starts of the job, about 20 s each: 8 min in all",
        "[  0:20] trial 1: amp(dtype=float16)",
        "[  0:40]   failed (non_finite_loss): the loss was inf at step 4 [8 min left at most]",
    ]


def test_lines_say_speed_reason_and_the_tests_state(clock: Clock) -> None:
    text = "\n".join(_lines(clock))
    for word in ("2,078 samples/s, 1.98× as written", "pruned (clearly_slower): after 12 steps",
                 "confirmation: baseline 1,049, best 4,830 samples/s; first pairs"):  # fmt: skip
        assert word in text


def test_lines_obey_nothing_from_outside(clock: Clock) -> None:
    text = "\n".join(_lines(clock))
    assert "[bold]x" in text
    assert not {"\x1b", "\r", "\u202e"} & set(text)


def test_a_long_start_is_heard_of_once_a_minute(clock: Clock) -> None:
    console, stream = _console()
    lines = Lines(Board(clock), console)
    lines.started("baseline", {})
    for _ in range(int(3 * HEARTBEAT_S)):
        clock.now += 1
        lines.progressed(Progress(phase="warm-up"), wanted=20)
    said = stream.getvalue().splitlines()[1:]
    assert len(said) == 3
    assert said[0] == "[  1:00]   still warming up"


def test_what_was_seen_is_said_when_the_first_step_is_late(clock: Clock) -> None:
    console, stream = _console()
    lines = Lines(Board(clock), console)
    lines.started("baseline", {})
    waiting = Progress(seen=frozenset({"torch", "batch", "optimizer"}))
    for _ in range(61):
        clock.now += 1
        lines.progressed(waiting, wanted=20)
    lines.progressed(Progress(phase="warm-up", step=1), wanted=20)
    said = stream.getvalue().splitlines()[1:]
    what = "torch imported, batches fetched, an optimizer made, no optimizer step yet"
    assert said == [f"[  0:30]   starting up: {what}"]
    lines.started("trial 1", {})
    clock.now += 31
    lines.progressed(Progress(), wanted=20)
    assert stream.getvalue().splitlines()[-1].endswith("starting up: torch not imported yet")
    display = LiveDisplay(lines._board, console, ("python", "train.py"))
    console.print(display.screen())
    assert "torch not imported yet" in stream.getvalue().splitlines()[-2]


def _shown(clock: Clock, width: int) -> str:
    console, stream = _console(width, terminal=True)
    display = LiveDisplay(Board(clock), console, ("python", "train.py", HOSTILE))
    _tell(display, clock)
    display.started("confirmation run 2: best", TUNING.trials[-1].settings)
    display.progressed(Progress(phase="counting", counted=7, step=19), wanted=20)
    stream.truncate(0)
    stream.seek(0)
    console.print(display.screen())
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_live_screen_fits_and_shows_what_runs(clock: Clock, width: int) -> None:
    shown = _shown(clock, width)
    for word in ("confirmation run 2: best", "counting steps", "7/20 steps", "4.62×", "as written",
                 "best so far: 4.62×", "left at most", "python train.py"):  # fmt: skip
        assert word in shown, word
    assert max(len(line) for line in shown.splitlines()) <= width
    assert not {"\x1b", "\r", "\u202e"} & set(shown)


def test_the_live_screen_shows_the_last_trials_when_there_are_many(clock: Clock) -> None:
    console, stream = _console(terminal=True)
    display = LiveDisplay(Board(clock), console, ("python",))
    for number in range(60):
        display.trial_ended(replace(TUNING.trials[3], number=number), baseline=1.0)
    console.print(display.screen())
    shown = stream.getvalue()
    assert " 59 " in shown and " 12 " not in shown
    assert len(shown.splitlines()) <= 24


def test_left_is_what_is_to_come_and_never_more_than_the_budget(clock: Clock) -> None:
    board = Board(clock, 100.0)
    assert board.left_s == 100.0
    board.cost(11, None)
    board.started("baseline", {})
    clock.now = 5.0
    board.ended()
    assert board.left_s == 50.0, "ten more like the first"
    board.cost(10, 20.0)
    assert board.left_s == 95.0, "the budget ends it"
    board.cost(2, 20.0)
    board.started("trial 1", {})
    clock.now = 11.0
    assert board.left_s == 20.0 + 14.0


def test_the_cost_is_said_with_the_budget(clock: Clock) -> None:
    board = Board(clock, 90.0)
    assert board.cost_text(1, None) == (
        "To come: at most 1 start of the job; the first shows how long one takes; "
        "--time-budget ends it after 90 s"
    )
    assert "about 20 s each: 4 min in all; --time-budget" in board.cost_text(12, 20.0)


def test_a_slower_trial_is_no_best(clock: Clock) -> None:
    board = Board(clock)
    for trial in TUNING.trials[:3]:
        board.trial_ended(trial, 1049.2)
    assert board.best is None
    board.trial_ended(TUNING.trials[3], 1049.2)
    assert board.best == TUNING.trials[3]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "x"),
        ([_run(0, "baseline", 10.0), _run(1, "baseline", 20.0), _run(1, "best_lossless", 30.0)],
         "baseline 20.00, best lossless 30.00 samples/s; x"),
        ([_run(0, "best", None, "crash: it broke")], "best crash: it broke samples/s; x"),
    ],
)  # fmt: skip
def test_the_last_pair_is_named(runs: Sequence[ConfirmationRun], said: str) -> None:
    assert confirmed_text(runs, "x") == said


def test_a_pipe_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with reporting(("python", "train.py")) as reporter:
        reporter.note("waiting")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "[  0:00] waiting\n")


def test_a_terminal_gets_the_live_screen_and_no_colour_where_it_wants_none(tmp_path: Path) -> None:
    code = (
        "from aiak_tune.cli.progress import reporting\n"
        "with reporting(('python', 'train.py')) as r:\n"
        "    r.started('baseline', {}); r.note('waiting')\n"
    )
    outer, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1", "COLUMNS": "80"}
    subprocess.run([sys.executable, "-c", code], stderr=inner, env=environment, check=True)
    os.close(inner)
    shown = os.read(outer, 100_000).decode()
    os.close(outer)
    assert "waiting" in shown and "baseline" in shown
    assert "\x1b[?25l" in shown and "\x1b[?25h" in shown, "the cursor comes back"
    assert not any(f"\x1b[{colour}" in shown for colour in ("3", "9", "38"))
