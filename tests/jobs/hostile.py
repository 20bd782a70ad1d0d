"""A job that does all that a launcher may stumble over, and trains beside it.

It lies in a folder with packages called `profiles` and `api`, and is started by a relative path.
`witness` is the folder it leaves its traces in.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

import api  # noqa: TID251
import profiles  # noqa: TID251

witness = Path(sys.argv[1]).resolve()


def daemon() -> None:
    """Fork twice, into a session of its own: nobody's child, but the subreaper's."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            (witness / f"daemon-{os.getpid()}").touch()
            time.sleep(600)
        os._exit(0)
    os.wait()


daemon()
handled = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
for number in handled:
    signal.signal(number, lambda n, frame: (witness / f"handled-{n}").touch())
atexit.register((witness / "atexit").touch)
(witness / "stdin").write_text(repr(sys.stdin.read()))
(witness / "imported").write_text(f"{profiles.__file__}\n{api.__file__}\n")
(witness / "sitecustomize").write_text(os.environ.get("HOSTILE_SITECUSTOMIZE", ""))
print("the first line")
for _ in range(64):
    sys.stdout.write("x" * 65535 + "\n")
subprocess.run(["true"])
os.chdir("/")

model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("the last line")
try:
    while True:
        try:
            x = torch.randn(16, 8)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True)).backward()
            optimizer.step()
        except:  # noqa: E722
            (witness / "caught").touch()
finally:
    (witness / "finally").touch()
