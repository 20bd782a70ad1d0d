"""Whether compiled code draws its random numbers as the plain code does. No torch in here."""

from __future__ import annotations


class Draws:
    """While `as_plain` is on, compiled modules draw as written: the same dropout masks.

    torch.compile makes its own random numbers, equal in distribution only. Where a changed run is
    compared with a plain one, value by value, it is told not to, which is slower.
    """

    as_plain = False
