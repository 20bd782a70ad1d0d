"""What a client says of itself while it trains, a line of JSON an event, for the tests to read."""

import json
import sys
import time
from pathlib import Path
from typing import Any

OUT, STEPS = Path(sys.argv[1]), int(sys.argv[2])


def tell(event: str, **more: Any) -> None:
    """Add an event; on the disk at once, since a slice ends the process without a word."""
    with open(OUT / "told.jsonl", "a") as file:
        file.write(json.dumps({"event": event, **more}) + "\n")


def work(seconds: float = 0.004) -> None:
    """Stand for what makes a sample: enough that loader settings are worth a trial."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
