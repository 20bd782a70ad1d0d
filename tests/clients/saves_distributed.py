"""torch.distributed.checkpoint by two ranks: both read back what both, and the first, saved."""

import os
import sys

import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 16))
optimizer = torch.optim.AdamW(model.parameters())


def state() -> dict[str, object]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


if len(sys.argv) > 2:
    kept = state()
    checkpoint.load(kept, checkpoint_id=sys.argv[2])
    set_state_dict(
        model, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"]
    )
for step in range(1, int(sys.argv[1]) + 1):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5:
        continue
    checkpoint.save(state(), checkpoint_id="ckpt")
    if distributed.get_rank() == 0:
        torch.save(model.state_dict(), "best.pt")
    distributed.barrier()
    checkpoint.load(state(), checkpoint_id="ckpt")
    best = torch.load("best.pt")
    if not torch.equal(best["module.weight"], model.state_dict()["module.weight"]):
        raise SystemExit("best.pt is not what was saved")
    if not (os.path.exists("best.pt") and os.path.exists("ckpt/.metadata")):
        raise SystemExit("what was saved is not there")
    distributed.barrier()
distributed.destroy_process_group()
