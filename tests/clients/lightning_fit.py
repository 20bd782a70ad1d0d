"""Lightning's Trainer: the closure inside the step, validations in between, a checkpoint each."""

from typing import Any

import lightning
import torch
from told import OUT, STEPS, tell, work
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        work()
        row = torch.full((32,), float(index % 7))
        return row, row.sum().reshape(1)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        return nn.functional.mse_loss(self.body(x), y)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, y = batch
        self.log("validation", nn.functional.mse_loss(self.body(x), y))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Tell(lightning.Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, n: int) -> None:
        tell("step", step=trainer.global_step, samples=len(batch[0]))

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            tell("evaluation", step=trainer.global_step)


trainer = lightning.Trainer(
    max_steps=STEPS,
    accelerator="cpu",
    default_root_dir=OUT,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    val_check_interval=15,
    callbacks=[Tell(), lightning.pytorch.callbacks.ModelCheckpoint(OUT, every_n_train_steps=10)],
)
trainer.fit(Module(), DataLoader(Rows(100_000), batch_size=6), DataLoader(Rows(12), batch_size=6))
tell("end", step=trainer.global_step)
