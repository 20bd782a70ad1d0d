"""Train a small character-level transformer on the docstrings of Python's standard library."""

from __future__ import annotations

import argparse
import ast
import math
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of one source file."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, DOCUMENTED):
            text = ast.get_docstring(node)
            if text:
                yield text


def load_text(files: int) -> str:
    """Return the docstrings of the standard library's first top-level modules, in ASCII."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:files]
    text = "\n\n".join(text for path in modules for text in docstrings(path))
    return text.encode("ascii", "ignore").decode()


class Corpus:
    """The text as character numbers, its last tenth held out."""

    def __init__(self, text: str, block_size: int) -> None:
        self.characters = sorted(set(text))
        self.block_size = block_size
        numbers = {character: number for number, character in enumerate(self.characters)}
        data = torch.tensor([numbers[character] for character in text])
        cut = int(0.9 * len(data))
        self.train, self.held_out = data[:cut], data[cut:]

    def get_batch(self, data: Tensor, batch_size: int, device: torch.device) -> Batch:
        """Return random pieces of the text, and the same pieces one character on."""
        starts = torch.randint(len(data) - self.block_size, (batch_size,)).tolist()
        inputs = torch.stack([data[i : i + self.block_size] for i in starts])
        targets = torch.stack([data[i + 1 : i + 1 + self.block_size] for i in starts])
        return inputs.to(device), targets.to(device)


class SelfAttention(nn.Module):
    """Causal attention with several heads."""

    mask: Tensor

    def __init__(self, width: int, heads: int, block_size: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)).bool())

    def forward(self, x: Tensor) -> Tensor:
        """Mix each position with those before it."""
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        weights = self.dropout(F.softmax(scores, dim=-1))
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.dropout(self.out(mixed))


class Block(nn.Module):
    """Attention and a feed-forward network, each with a residual path."""

    def __init__(self, width: int, heads: int, block_size: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, block_size, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply both parts."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class GPT(nn.Module):
    """A decoder-only transformer over characters."""

    def __init__(self, vocabulary: int, args: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, args.width)
        self.positions = nn.Embedding(args.block_size, args.width)
        self.dropout = nn.Dropout(args.dropout)
        self.blocks = nn.Sequential(
            *(
                Block(args.width, args.heads, args.block_size, args.dropout)
                for _ in range(args.layers)
            )
        )
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, vocabulary)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores of the next character at every position."""
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.dropout(self.tokens(inputs) + self.positions(positions))
        return self.head(self.norm(self.blocks(x)))


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch."""
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> Tensor:
    """Do one update from all its micro-batches and return their mean loss."""
    optimizer.zero_grad()
    total = torch.zeros((), device=batches[0][0].device)
    for batch in batches:
        loss = loss_of(model, batch) / len(batches)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total


@torch.no_grad()
def evaluate(model: nn.Module, corpus: Corpus, batch_size: int, device: torch.device) -> float:
    """Return the mean loss of some held-out batches."""
    model.eval()
    losses = [
        loss_of(model, corpus.get_batch(corpus.held_out, batch_size, device)).item()
        for _ in range(8)
    ]
    model.train()
    return sum(losses) / len(losses)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=16, help="pieces a micro-batch")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches an update")
    parser.add_argument("--block-size", type=int, default=64, help="characters a piece")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--files", type=int, default=80, help="modules whose docstrings are read")
    parser.add_argument("--log-every", type=int, default=10, help="steps between two loss lines")
    parser.add_argument("--eval-every", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, help="file for the trained weights")
    return parser.parse_args(argv)


def main() -> None:
    """Train, with an evaluation every so many steps."""
    args = parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    corpus = Corpus(load_text(args.files), args.block_size)
    model = GPT(len(corpus.characters), args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    print(f"{len(corpus.train)} characters, ln(vocabulary) {math.log(len(corpus.characters)):.2f}")

    start = time.time()
    for step in range(1, args.steps + 1):
        batches = [
            corpus.get_batch(corpus.train, args.batch_size, device)
            for _ in range(args.accumulation)
        ]
        loss = train_step(model, optimizer, batches)
        if step % args.log_every == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % args.eval_every == 0:
            held_out = evaluate(model, corpus, args.batch_size, device)
            print(f"step {step} held-out {held_out:.4f} after {time.time() - start:.1f} s")

    if args.checkpoint is not None:
        torch.save({"model": model.state_dict(), "characters": corpus.characters}, args.checkpoint)
        print(f"saved {args.checkpoint}")


if __name__ == "__main__":
    main()
