"""transformers' Trainer: a tiny GPT-2, gradient accumulation, evaluations in between."""

from typing import Any

import torch
from told import OUT, STEPS, tell, work
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Sentences(Dataset[dict[str, Tensor]]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        work()
        ids = (torch.arange(16) + index) % 97
        return {"input_ids": ids, "labels": ids}


class Tell(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        samples = state.train_batch_size * args.gradient_accumulation_steps
        tell("step", step=state.global_step, samples=samples)

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        tell("evaluation", step=state.global_step)


config = GPT2Config(vocab_size=97, n_positions=16, n_embd=32, n_layer=2, n_head=2)
arguments = TrainingArguments(
    output_dir=str(OUT / "hf"),
    max_steps=STEPS,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    eval_steps=15,
    save_steps=10,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=arguments,
    train_dataset=Sentences(100_000),
    eval_dataset=Sentences(8),
    callbacks=[Tell()],
)
trainer.train()
tell("end", step=trainer.state.global_step)
