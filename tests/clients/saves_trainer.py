"""transformers' Trainer: saves often, keeps one checkpoint, reads the best back, and goes on."""

import sys

import torch
from torch.utils.data import Dataset, Subset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(16) + index) % 50
        return {"input_ids": row, "labels": row}


config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
arguments = TrainingArguments(
    "out",
    max_steps=int(sys.argv[1]),
    per_device_train_batch_size=2,
    eval_strategy="steps",
    eval_steps=6,
    save_steps=6,
    save_total_limit=1,
    load_best_model_at_end=True,
    metric_for_best_model="loss",
    report_to="none",
    use_cpu=True,
)
model = GPT2LMHeadModel(config)
trainer = Trainer(
    model, arguments, train_dataset=Rows(), eval_dataset=Subset(Rows(), range(8))
)  # fmt: skip
trainer.train(resume_from_checkpoint=sys.argv[2] if len(sys.argv) > 2 else None)
model.save_pretrained("final")
