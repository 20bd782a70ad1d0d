"""The two displays of a running tuning: a live one in a terminal, else a line for each event."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from aiak_tune.cli import board, output
from aiak_tune.cli.board import Board
from aiak_tune.cli.sections import outcome, rate_of
from aiak_tune.cli.verdict import job_words
from aiak_tune.optimizations.base import Settings
from aiak_tune.profiles.workload import WorkloadProfile
from aiak_tune.selector.progress import Progress
from aiak_tune.selector.redaction import redact_command
from aiak_tune.selector.reporter import Reporter
from aiak_tune.selector.results import ConfirmationRun, FindingRecord, Trial

HEARTBEAT_S = 60.0  # a log that says nothing for longer looks like a hang
_BAR_WIDTH, _NARROW = 24, 66
_OTHER_LINES = 9  # of the live display, beside the trials


@contextmanager
def reporting(command: Sequence[str], *, budget_s: float | None = None) -> Iterator[Reporter]:
    """Show what runs, on stderr: live in a terminal, in lines elsewhere."""
    state, console = Board(time.monotonic, budget_s), output.make_console(_Console, sys.stderr)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        with LiveDisplay(state, console, redact_command(command)) as display:
            yield display
    else:
        yield Lines(state, console)


class _Told:
    """What both displays do with what a tuning tells; they differ in how a line is written."""

    def __init__(self, state: Board, console: Console) -> None:
        self._board = state
        self._console = console

    def cost(self, *, starts: int, seconds_each: float | None) -> None:
        """Say what is to come."""
        self._board.cost(starts, seconds_each)
        self._line(self._board.cost_text(starts, seconds_each))

    def profiled(self, profile: WorkloadProfile, findings: Sequence[FindingRecord]) -> None:
        """Say where the time goes and what fits."""
        self._board.baseline = profile.steps.samples_per_s or self._board.baseline
        self._line(board.profile_text(profile))
        if findings:
            self._line(board.fits_text(findings))

    def confirmed(self, runs: Sequence[ConfirmationRun], said: str) -> None:
        """Say how the confirmation stands."""
        self._board.ended()
        self._board.said = board.confirmed_text(runs, said)
        self._line(f"confirmation: {self._board.said}")

    def note(self, text: str) -> None:
        """Say it."""
        self._line(text)

    def _line(self, text: str) -> None:
        raise NotImplementedError


class Lines(_Told):
    """A line for each event, with the time since the beginning; no control codes."""

    _spoke_s = 0.0
    _waited_for = 0  # the start that was told of

    def started(self, what: str, settings: Settings) -> None:
        """Say what runs now."""
        self._board.started(what, settings)
        self._line(f"{what}: {output.settings_text(settings)}")

    def progressed(self, progress: Progress, *, wanted: int) -> None:
        """Say once a minute that it still runs, and early what keeps the first step waiting."""
        self._board.progress = progress
        waiting = self._board.waiting_text()
        if waiting and self._waited_for != self._board.starts:
            self._waited_for = self._board.starts
            self._line(f"  {waiting}")
        if self._board.elapsed_s - self._spoke_s < HEARTBEAT_S:
            return
        counted = f", {progress.counted} of {wanted} steps counted" if progress.counted else ""
        self._line(f"  still {waiting or board.phase_text(progress)}{counted}")

    def trial_ended(self, trial: Trial, *, baseline: float | None) -> None:
        """Say a trial's outcome, and what is left."""
        self._board.trial_ended(trial, baseline)
        if not trial.settings and trial.state == "measured":
            return  # `profiled` says more of the job as written
        left = self._board.left_s
        said = board.result_text(trial, self._board.relative(trial))
        rest = f" [{output.duration(left)} left at most]" if left else ""
        self._line(f"  {said}{rest}")

    def _line(self, text: str) -> None:
        minutes, seconds = divmod(int(self._board.elapsed_s), 60)
        self._spoke_s = self._board.elapsed_s
        self._console.print(output.plain(f"[{minutes:3}:{seconds:02}] {text}"), soft_wrap=True)


class LiveDisplay(_Told):
    """Redrawn a few times a second; gone when it ends, since the result is printed then."""

    def __init__(self, state: Board, console: Console, command: Sequence[str]) -> None:
        super().__init__(state, console)
        self._command = job_words(command)
        self._spinner = Spinner("dots" if console.encoding.startswith("utf") else "line")
        self._live = Live(
            console=console, get_renderable=self.screen, transient=True, refresh_per_second=5
        )

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()
        self._console.print()  # the result follows

    def started(self, what: str, settings: Settings) -> None:
        """Show what runs now."""
        self._board.started(what, settings)

    def progressed(self, progress: Progress, *, wanted: int) -> None:
        """Move the bar."""
        self._board.progress, self._board.wanted = progress, wanted

    def trial_ended(self, trial: Trial, *, baseline: float | None) -> None:
        """Add a row."""
        self._board.trial_ended(trial, baseline)

    def _line(self, text: str) -> None:
        self._console.print(output.plain(text, style="dim"))

    def screen(self) -> RenderableType:
        """Return the display as it is now."""
        parts: list[RenderableType] = [Text(), self._head()]
        parts += [self._now(), _cut(f"  {output.settings_text(self._board.settings)}")]
        if self._board.trials:
            parts += [self._trials(), self._best()]
        return Group(*parts)

    def _head(self) -> RenderableType:
        left = self._board.left_s
        rest = "" if left is None else f", {output.duration(left)} left at most"
        line = Table.grid(expand=True, padding=(0, 1))
        line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        line.add_column(justify="right", no_wrap=True)
        line.add_row(
            output.plain(self._command, style="bold"),
            f"{output.duration(self._board.elapsed_s)} so far{rest}",
        )
        return line

    def _now(self) -> RenderableType:
        progress, wanted = self._board.progress, self._board.wanted
        if not self._board.running:
            return Text("  judging")
        line = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [
            self._spinner,
            output.plain(self._board.what, style="bold"),
            self._board.waiting_text() or board.phase_text(progress),
        ]
        if progress.phase == "counting" and wanted:
            # A window ends by time too: more steps than wanted may be counted.
            done, room = min(progress.counted, wanted), self._console.width - _NARROW
            cells.append(f"{done}/{wanted} steps")
            if room > 0:
                cells.append(ProgressBar(total=wanted, completed=done, width=min(room, _BAR_WIDTH)))
        line.add_row(*cells)
        return line

    def _trials(self) -> RenderableType:
        rows = max(3, self._console.height - _OTHER_LINES)
        shown = self._board.trials[-rows:]
        made = output.table("#", "settings", "samples/s", "× base", "outcome")
        made.expand = True
        for column, ratio in zip(made.columns, (None, 3, None, None, 2), strict=True):
            column.ratio, column.no_wrap, column.overflow = ratio, True, "ellipsis"
        made.columns[2].justify = made.columns[3].justify = "right"
        for trial in shown:
            made.add_row(
                str(trial.number),
                output.plain(output.settings_text(trial.settings)),
                output.number(rate_of(trial), 4),
                output.ratio(self._board.relative(trial)),
                output.plain(outcome(trial)),
            )
        return made

    def _best(self) -> RenderableType:
        best = self._board.best
        if best is None:
            return _cut("best so far: the job as written")
        gain = output.ratio(self._board.relative(best))
        return _cut(f"best so far: {gain} with {output.settings_text(best.settings)}", "green")


def _cut(text: str, style: str = "") -> Text:
    line = output.plain(text, style)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


class _Console(Console):
    """A console whose reader may go away: the tuning goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
