"""Sets of instants as disjoint, sorted, half-open intervals of integer nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int64s: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Disjoint `[start, end)` pairs in rising order, none empty, none touching the next.

    Build one with `of`, which takes events in any order; the fields are taken as they are.

    Attributes:
        starts: (intervals,), nanoseconds.
        ends: (intervals,), nanoseconds, each above its start.
    """

    starts: Int64s
    ends: Int64s

    @classmethod
    def of(cls, starts: ArrayLike, ends: ArrayLike) -> Intervals:
        """Return the union of events given by their starts and ends, empty events left out."""
        start, end = np.asarray(starts, np.int64), np.asarray(ends, np.int64)
        real = end > start
        start, end = start[real], end[real]
        if not len(start):
            return EMPTY
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        # An interval opens where an event starts after everything before it has ended.
        opens = np.concatenate(([True], start[1:] > end[:-1]))
        closes = np.concatenate((opens[1:], [True]))
        return cls(start[opens], end[closes])

    @classmethod
    def span(cls, start: int, end: int) -> Intervals:
        """Return the one interval `[start, end)`."""
        return cls.of([start], [end])

    def __len__(self) -> int:
        return len(self.starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    @property
    def total_ns(self) -> int:
        """Time covered."""
        return int((self.ends - self.starts).sum())

    def union(self, *others: Intervals) -> Intervals:
        """Return the instants in this set or in any of `others`."""
        sets = (self, *others)
        return Intervals.of(
            np.concatenate([s.starts for s in sets]), np.concatenate([s.ends for s in sets])
        )

    def intersect(self, other: Intervals) -> Intervals:
        """Return the instants in both sets."""
        first = np.searchsorted(other.ends, self.starts, side="right")
        last = np.searchsorted(other.starts, self.ends, side="left")
        count = np.maximum(last - first, 0)
        mine = np.repeat(np.arange(len(self)), count)
        # Numbers each partner of an interval 0, 1, … from its first one on.
        nth = np.arange(len(mine)) - np.repeat(np.cumsum(count) - count, count)
        theirs = first[mine] + nth
        return Intervals(
            np.maximum(self.starts[mine], other.starts[theirs]),
            np.minimum(self.ends[mine], other.ends[theirs]),
        )

    def minus(self, other: Intervals) -> Intervals:
        """Return the instants in this set and not in `other`."""
        if not len(self) or not len(other):
            return self
        start = min(int(self.starts[0]), int(other.starts[0]))
        end = max(int(self.ends[-1]), int(other.ends[-1]))
        return self.intersect(other.outside(start, end))

    def outside(self, start: int, end: int) -> Intervals:
        """Return the instants of `[start, end)` that this set leaves free."""
        inside = self.clip(start, end)
        starts = np.concatenate((np.array([start], np.int64), inside.ends))
        ends = np.concatenate((inside.starts, np.array([end], np.int64)))
        real = ends > starts
        return Intervals(starts[real], ends[real])

    def clip(self, start: int, end: int) -> Intervals:
        """Return the part inside `[start, end)`."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left"))
        if first >= last or end <= start:
            return EMPTY
        return Intervals(
            np.maximum(self.starts[first:last], start), np.minimum(self.ends[first:last], end)
        )

    def longer_than(self, ns: int) -> Intervals:
        """Return the intervals that last more than `ns` on end."""
        long = self.ends - self.starts > ns
        return Intervals(self.starts[long], self.ends[long])

    def touching(self, other: Intervals) -> Intervals:
        """Return those whole intervals that share an instant with `other`."""
        first = np.searchsorted(other.ends, self.starts, side="right")
        last = np.searchsorted(other.starts, self.ends, side="left")
        return Intervals(self.starts[last > first], self.ends[last > first])


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))
