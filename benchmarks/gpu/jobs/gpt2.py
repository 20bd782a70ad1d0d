"""GPT-2 of 124 million parameters in a plain loop without a DataLoader: fp32, AdamW, dropout."""

import argparse

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    # A repeating pattern with noise: something to learn, without a file.
    text = (torch.arange(2_000_000) * 7 % 1999 + torch.randint(0, 3, (2_000_000,))) % 2000
    for step in range(args.steps):
        starts = torch.randint(len(text) - args.length - 1, (args.batch_size,))
        inputs = torch.stack([text[i : i + args.length] for i in starts]).cuda()
        targets = torch.stack([text[i + 1 : i + 1 + args.length] for i in starts]).cuda()
        logits = model(inputs, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
