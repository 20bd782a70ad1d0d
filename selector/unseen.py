"""No step was seen: what was, and what to do, in words for people."""

from __future__ import annotations

from collections.abc import Collection

MARK = "call aiak_tune.step_done(samples=n) where a step ends"
# In the order in which a training loop shows them.
SEEN = {
    "forward": "model called",
    "batch": "batches fetched",
    "gradient": "gradients asked of torch.autograd.grad",
    "backward": "backward called",
    "optimizer": "an optimizer made",
}


def seen_text(seen: Collection[str]) -> str:
    """Return `torch imported, batches fetched, no optimizer step yet`.

    Args:
        seen: words of `agent.records.SIGHTS`, and "torch" when a process has imported it.
    """
    if "torch" not in seen:
        return "torch not imported yet"
    told = [text for word, text in SEEN.items() if word in seen]
    last = "no call of step_done yet" if "marks" in seen else "no optimizer step yet"
    return ", ".join(("torch imported", *told, last))


def why_no_step(seen: Collection[str]) -> str:
    """Return the reason why a job that imported torch showed no step, with the remedy."""
    if "marks" in seen:
        return (
            "the job has aiak_tune.step_done in its code, which was not called before it ended: "
            "call it at the end of each step, or remove it and optimizer steps count"
        )
    began = "the job imported torch, but no optimizer step was seen before it ended"
    if "backward" in seen or "gradient" in seen:
        by = "backward" if "backward" in seen else "torch.autograd.grad"
        made = "made an optimizer that never stepped" if "optimizer" in seen else (
            "has no torch.optim optimizer"
        )  # fmt: skip
        return (
            f"{began}: it took gradients with {by} and {made}; if it updates its weights in "
            f"another way, {MARK}"
        )
    if "optimizer" in seen:
        done = "fetched batches" if "batch" in seen else "called its model" * ("forward" in seen)
        before = f"made an optimizer and {done}" if done else "made an optimizer"
        return f"{began}: it {before}, but no gradient was taken; does it end before it trains?"
    if "batch" in seen or "forward" in seen:
        done = "fetched batches" if "batch" in seen else "called a model"
        return (
            f"{began}: it {done}, but took no gradient and made no torch.optim optimizer; is this "
            f"an evaluation? If it trains without autograd, {MARK}"
        )
    return f"{began}: is it a training command, and does it use a torch.optim optimizer?"
