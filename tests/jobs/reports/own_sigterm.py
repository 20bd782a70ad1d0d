"""A training that saves itself when its scheduler takes the machine away (SIGTERM)."""

import signal
import sys
from types import FrameType

import small  # type: ignore[import-not-found]


def on_sigterm(number: int, frame: FrameType | None) -> None:
    print("saved before the machine goes", flush=True)
    sys.exit(75)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    small.main()
