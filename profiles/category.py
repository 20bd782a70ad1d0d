"""The six categories of a step's time. Runs in the job too: standard library only."""

from enum import Enum


class Category(str, Enum):
    """Where an instant of a step goes; the six sum to the step (DESIGN.md section 4)."""

    DATA_WAIT = "data_wait"
    H2D = "h2d"
    COMPUTE = "compute"
    COMM = "comm"
    GAP = "gap"
    HOST = "host"
