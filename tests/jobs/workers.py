"""A job whose samples take their time, and that cannot stand data workers.

Where a file `hang` lies, every start but the first hangs before it trains, with a daemon beside it.
The first start with workers is killed by one of them; in later ones the workers raise.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

again = Path("started").exists()
Path("started").touch()
if again and Path("hang").exists():
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path("hanging").touch()
    time.sleep(600)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, get_worker_info  # noqa: E402


class Slow(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if get_worker_info() is not None:
            if not Path("killed").exists():
                Path("killed").touch()
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(600)
            raise RuntimeError("the archive is open in another process")
        values = sorted((index * n) % 1009 for n in range(2000))
        x = torch.tensor(values[:64], dtype=torch.float32) / 1009
        return x, x.mean(dim=0, keepdim=True)


loader = DataLoader(Slow(), batch_size=8)
model = nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(1000):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
