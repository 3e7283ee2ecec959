"""A delta rule of one's own, trained on associative recall: the same key is given one value after another, and asked for the latest.

Its erase key is a learned projection, not the key that is written; how much goes is learned of the input, and so is how fast each channel
of the state fades. Plain linear attention, with the same projections and decays, adds all values of a key up. attn_mlir derives the chunked
form and the gradients of both.

    python examples/invented_delta.py [--steps 300] [--figure recall.svg]
"""

import argparse
from pathlib import Path
from typing import Any

import torch

import attn_mlir

HEADS, DIM, KEYS = 2, 16, 8


class Recall(torch.nn.Module):
    """One layer: keys and values to what is recalled."""

    def __init__(self, erases: bool) -> None:
        super().__init__()
        self.erases = erases
        self.q, self.k, self.a = (torch.nn.Linear(DIM, HEADS * DIM, bias=False) for _ in range(3))
        self.v, self.out = torch.nn.Linear(DIM, HEADS * DIM, bias=False), torch.nn.Linear(HEADS * DIM, DIM, bias=False)
        self.share = torch.nn.Linear(DIM, HEADS)
        self.fade = torch.nn.Parameter(torch.full((HEADS, DIM), -6.0))

    def forward(self, key: torch.Tensor, value: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """What is recalled for `asked`, [B, T, DIM], of the pairs given up to there."""
        b, t, _ = key.shape
        q, k, a, v = (f(x).view(b, t, HEADS, DIM) for f, x in ((self.q, asked), (self.k, key), (self.a, key), (self.v, value)))
        k, a = (torch.nn.functional.normalize(x, dim=-1) for x in (k, a))
        fade, share = self.fade, self.share(key)

        def decay_mod(g: Any, b: Any, h: Any, t: Any, d: Any) -> Any:
            return -torch.nn.functional.softplus(fade[h, d])

        def erase_mod(b: Any, h: Any, t: Any) -> Any:
            return torch.sigmoid(share[b, t, h])

        own = {"erase_mod": erase_mod, "erase_key": a} if self.erases else {}
        o = attn_mlir.linear_attention(q, k, v, decay_mod=decay_mod, layout="bshd", **own)
        return self.out(o.reshape(b, t, HEADS * DIM))


def task(batch: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Keys, values, keys that are asked for, and the value that each was given last."""
    table = torch.nn.functional.normalize(torch.randn(batch, KEYS, DIM, generator=generator), dim=-1)
    value = torch.randn(batch, length, DIM, generator=generator)
    given = torch.randint(KEYS, (batch, length), generator=generator)
    given[:, :KEYS] = torch.arange(KEYS)
    earlier = (torch.rand(batch, length, generator=generator) * (torch.arange(length) + 1)).long()
    asked = given.gather(1, earlier)
    seen = (given[:, None] == asked[:, :, None]) & torch.ones(length, length, dtype=torch.bool).tril()
    last = (seen * torch.arange(1, length + 1)).amax(2) - 1
    rows = torch.arange(batch)[:, None]
    return table[rows, given], value, table[rows, asked], value[rows, last]


def train(erases: bool, steps: int, length: int = 64) -> list[float]:
    """The mean squared errors, step by step; 1 is that of recalling nothing."""
    torch.manual_seed(0)
    model, generator = Recall(erases), torch.Generator().manual_seed(1)
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for _ in range(steps):
        key, value, asked, wanted = task(16, length, generator)
        loss = (model(key, value, asked) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def draw(losses: dict[str, list[float]], path: Path) -> None:
    """Both curves."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    for name, values in losses.items():
        axes.plot(values, label=name)
    axes.set(xlabel="step", ylabel="mean squared error", yscale="log", title="associative recall of the latest value of a key")
    axes.legend()
    figure.savefig(path)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--figure", type=Path, help="where to draw both curves; needs matplotlib")
    options = parser.parse_args(argv)
    losses = {name: train(erases, options.steps) for name, erases in (("delta rule", True), ("linear attention", False))}
    for name, values in losses.items():
        print(f"{name}: {values[0]:.2f} before, {sum(values[-10:]) / len(values[-10:]):.3f} after {options.steps} steps")
    if options.figure is not None:
        draw(losses, options.figure)


if __name__ == "__main__":
    main()
