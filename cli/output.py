"""How verbs print: numbers, settings, breakdown bars, JSON.

Names, reasons and paths come from strangers. They go through `plain`, which takes out control
characters and gives a `Text`, in which Rich reads no markup.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from aiak_tune.cli.files import write_json
from aiak_tune.cli.messages import clean
from aiak_tune.optimizations.base import Params, Settings
from aiak_tune.profiles.category import Category
from aiak_tune.profiles.workload import Environment, WorkloadProfile

NOTHING = "–"
AS_WRITTEN = "as written"
_BAR_WIDTH = 30
_NARROWEST = 20  # a table needs some; COLUMNS=0 is set where a terminal has no size
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def make_console(kind: type[Console] = Console, stream: TextIO | None = None) -> Console:
    """Return the console: no markup, no guessed colours; Rich honours NO_COLOR and COLUMNS."""
    stream = stream or sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")  # an ASCII terminal shows ? where it has no ×
    return kind(file=stream, width=_width(), markup=False, emoji=False, highlight=False)


def _width() -> int | None:
    """Return the width where COLUMNS is no width; None leaves the choice to Rich."""
    columns = os.environ.get("COLUMNS", "")
    if not columns.isdecimal() or int(columns) >= _NARROWEST:
        return None
    try:
        return max(os.get_terminal_size(1).columns, _NARROWEST)
    except OSError:
        return 80


def emit(shown: Iterable[RenderableType], document: Mapping[str, Any], *, json: str | None) -> None:
    """Print a result for people and, with `--json`, its document; with `-` the document alone."""
    if json != "-":
        console = make_console()
        for renderable in shown:
            text = renderable if isinstance(renderable, Text) else None
            # A command is copied, so only the terminal breaks it; a pipe gets each text in a line.
            soft = text is not None and (bool(text.no_wrap) or not console.is_terminal)
            console.print(renderable, soft_wrap=soft)
    if json is not None:
        write_json(document, json)


def plain(text: object, style: str = "") -> Text:
    """Return text from outside as it may be printed."""
    return Text(clean(str(text)), style=style)


def command(text: str) -> Text:
    """Return a command to copy: never wrapped."""
    return Text(clean(text), style="bold", no_wrap=True)


def code(text: str) -> Text:
    """Return a line of code to copy: never wrapped, its indentation kept."""
    return Text(clean(text), no_wrap=True)


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table in the one look that all have; columns may be narrowed after."""
    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 1, 0, 0))
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def breakdown_table(profile: WorkloadProfile) -> RenderableType:
    """Return a bar for each category with milliseconds and share, or why there is none."""
    if profile.breakdown_ms is None:
        why = "; ".join(warning.text for warning in profile.warnings) or "not measured"
        return plain(f"no breakdown: {why}")
    made = table("category", "", "ms", "of the step")
    made.columns[2].justify = made.columns[3].justify = "right"
    step_ms = profile.steps.step_ms.mean
    decimals = _decimals(step_ms, 3)  # of the sum in every row: figures that add up line up
    for category in Category:
        share = profile.share(category)
        ms = profile.breakdown_ms.get(category, 0.0)
        made.add_row(category.value, _Bar(share), f"{ms:,.{decimals}f}", f"{share:.1%}")
    made.add_row("step", "", f"{step_ms:,.{decimals}f}", "", style="bold")
    return made


def settings_text(settings: Settings) -> str:
    """Return settings in one line: `amp(dtype=bfloat16), fused-optimizer`."""
    parts = (name + (f"({params_text(p)})" if p else "") for name, p in settings.items())
    return clean(", ".join(parts)) or AS_WRITTEN


def settings_names(settings: Settings) -> str:
    """Return the optimizations alone, for narrow columns."""
    return clean(", ".join(settings)) or AS_WRITTEN


def params_text(params: Params) -> str:
    """Return `num_workers=8, pin_memory=true`."""
    values = ((k, str(v).lower() if isinstance(v, bool) else str(v)) for k, v in params.items())
    return clean(", ".join(f"{key}={value}" for key, value in values))


def machine_text(environment: Environment) -> str:
    """Return `2× H200`, or the CPU where there is no GPU."""
    if environment.gpu is None:
        return clean(environment.cpu or "CPU")
    count = f"{environment.gpu_count}× " if environment.gpu_count > 1 else ""
    return clean(count + environment.gpu.removeprefix("NVIDIA "))


def number(value: float | None, digits: int = 3) -> str:
    """Return a figure with so many significant digits, never as a power of ten."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:,.{_decimals(value, digits)}f}"


def duration(value_s: float) -> str:
    """Return `45 s`, `6 min` or `1 h 20 min`: as exact as an estimate is."""
    if value_s < 120:
        return f"{max(value_s, 0):.0f} s"
    minutes = round(value_s / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def ratio(value: float | None) -> str:
    """Return `4.61×`."""
    return NOTHING if value is None else f"{value:.2f}×"


def interval(ci95: tuple[float, float] | None) -> str:
    """Return `4.52–4.70`."""
    return NOTHING if ci95 is None else f"{ci95[0]:.2f}–{ci95[1]:.2f}"


def size(value_bytes: float | None) -> str:
    """Return `13.2 GiB`."""
    if value_bytes is None:
        return NOTHING
    power = 0
    while abs(value_bytes) >= 1024 and power < len(_UNITS) - 1:
        value_bytes, power = value_bytes / 1024, power + 1
    return f"{number(value_bytes)} {_UNITS[power]}"


def moment(text: str) -> str:
    """Return an ISO 8601 time in the reader's time zone, to the minute."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return clean(text)


class _Bar:
    """A bar of a share of the step, in characters that the terminal has."""

    def __init__(self, share: float) -> None:
        self._share = share

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(5, options.max_width), min(_BAR_WIDTH, options.max_width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(_BAR_WIDTH, options.max_width)
        cells = round(max(0.0, min(self._share, 1.0)) * width)
        yield Segment((("#" if options.ascii_only else "█") * cells).ljust(width))


def _decimals(value: float, digits: int) -> int:
    if value == 0 or not math.isfinite(value):
        return 0
    return min(max(digits - 1 - math.floor(math.log10(abs(value))), 0), 6)
