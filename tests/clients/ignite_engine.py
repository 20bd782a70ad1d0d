"""ignite: the step inside an engine, and an evaluator that an event starts."""

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Loss
from told import STEPS, tell, work
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


model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
trainer = create_supervised_trainer(model, optimizer, nn.MSELoss())
evaluator = create_supervised_evaluator(model, metrics={"loss": Loss(nn.MSELoss())})
held_out = DataLoader(Rows(10), batch_size=5)


@trainer.on(Events.ITERATION_COMPLETED)
def told(engine: Engine) -> None:
    tell("step", step=engine.state.iteration, samples=len(engine.state.batch[0]))


@trainer.on(Events.ITERATION_COMPLETED(every=15))
def evaluated(engine: Engine) -> None:
    evaluator.run(held_out)
    tell("evaluation", step=engine.state.iteration)


trainer.run(DataLoader(Rows(5 * STEPS), batch_size=5), max_epochs=1)
tell("end", step=trainer.state.iteration)
