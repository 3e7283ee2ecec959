"""Trains a tiny transformer whose attention nobody has a kernel for, with attn-mlir and with plain PyTorch, from the same seed.

The attention sees a sliding window, adds ALiBi whose slopes are learned, and divides relu(score) by one plus its sum. The model
reads the Zen of Python, one character at a time. Gradients of everything, the slopes too, come from attn-mlir's derived
backward in one run and from autograd in the other.

    python examples/tiny_transformer.py [--steps 200] [--figure docs/figures/tiny_transformer.svg]
"""

import argparse
import codecs
import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_mlir import attention

WINDOW = 24


def row(s):
    """From one row of scores to its weights."""
    r = torch.relu(s)
    return r / (1.0 + r.sum())


def window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)


def compiled(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """The attention as attn-mlir takes it."""

    def alibi(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx)

    return attention(q, k, v, row=row, score_mod=alibi, mask_mod=window)


def eager(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """The same in PyTorch, on the whole matrix of scores."""
    position = torch.arange(q.shape[2])
    distance = position[:, None] - position
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 - slopes[:, None, None] * distance
    r = torch.relu(scores) * ((distance >= 0) & (distance < WINDOW))
    return r / (1.0 + r.sum(-1, keepdim=True)) @ v


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self, width: int, heads: int, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.slopes = nn.Parameter(2.0 ** -torch.arange(1.0, heads + 1))
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, -1))
        x = x + self.out(self.attend(q, k, v, self.slopes).transpose(1, 2).flatten(2))
        return x + self.network(self.norm_2(x))


class Model(nn.Module):
    """Characters to the logits of the next ones."""

    def __init__(self, characters: int, attend: Callable[..., Tensor], width: int = 64, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.blocks = nn.Sequential(*(Block(width, heads, attend) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def text() -> str:
    """The Zen of Python."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13")


@dataclass(frozen=True)
class Run:
    """The losses of a training run, the learned slopes, and the seconds it took."""

    losses: list[float]
    slopes: Tensor
    seconds: float


def train(attend: Callable[..., Tensor], steps: int, length: int = 64, batch: int = 4) -> Run:
    """Trains from the same weights on the same batches, whatever computes the attention."""
    torch.manual_seed(0)
    data = text()
    characters = sorted(set(data))
    tokens = torch.tensor([characters.index(c) for c in data])
    model = Model(len(characters), attend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    losses = []
    start = time.perf_counter()
    for _ in range(steps):
        begin = torch.randint(len(tokens) - length - 1, (batch,))
        window_of = begin[:, None] + torch.arange(length + 1)
        chosen = tokens[window_of]
        loss = F.cross_entropy(model(chosen[:, :-1]).flatten(0, 1), chosen[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    first: Any = model.blocks[0]
    return Run(losses, first.slopes.detach(), time.perf_counter() - start)


def draw(runs: dict[str, Run], path: Path) -> None:
    """Both curves, and how far they are apart."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "attn-mlir", "svg.fonttype": "none"})
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(6, 4.2), height_ratios=[3, 1], layout="constrained")
    for (name, run), style in zip(runs.items(), ("-", "--"), strict=True):
        above.plot(run.losses, style, label=name)
    first, second = runs.values()
    below.semilogy([max(abs(a - b), 1e-9) for a, b in zip(first.losses, second.losses, strict=True)], color="gray")
    above.set_ylabel("loss")
    above.legend()
    below.set_ylabel("difference")
    below.set_xlabel("step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> dict[str, Run]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the losses")
    args = parser.parse_args(arguments)
    runs = {"attn-mlir": train(compiled, args.steps), "PyTorch": train(eager, args.steps)}
    first, second = runs.values()
    print(f"{'step':>5} {'attn-mlir':>10} {'PyTorch':>10} {'difference':>11}")
    for step in sorted({*range(0, args.steps, max(1, args.steps // 8)), args.steps - 1}):
        a, b = first.losses[step], second.losses[step]
        print(f"{step:>5} {a:>10.5f} {b:>10.5f} {abs(a - b):>11.1e}")
    largest = max(abs(a - b) for a, b in zip(first.losses, second.losses, strict=True))
    print(f"largest difference {largest:.1e}; {first.seconds:.1f} s and {second.seconds:.1f} s")
    print(f"slopes of the first block: {', '.join(f'{x:.4f}' for x in first.slopes)}")
    if args.figure is not None:
        draw(runs, args.figure)
        print(f"losses drawn in {args.figure}")
    return runs


if __name__ == "__main__":
    main()
