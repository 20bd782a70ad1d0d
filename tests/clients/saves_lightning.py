"""Lightning: the best and the last checkpoint, the older best removed, and goes on."""

import sys

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 1)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = self.body(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


trainer = lightning.Trainer(
    max_steps=int(sys.argv[1]),
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
    callbacks=[
        ModelCheckpoint(
            "ckpt", every_n_train_steps=3, save_top_k=1, monitor="loss", save_last=True
        )
    ],
)  # fmt: skip
trainer.fit(
    Module(),
    DataLoader(TensorDataset(torch.randn(40_000, 4)), batch_size=8),
    ckpt_path=sys.argv[2] if len(sys.argv) > 2 else None,
    weights_only=False,
)
