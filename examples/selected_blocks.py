"""Attention to selected blocks, written by its user: a learned score of blocks picks 4 of 16, as in NSA and MoBA, and is trained with them.

Each query picks blocks of 32 keys by the product of a projected query with a projected mean key. Picking has no gradient; the score learns
because it is added to the scores of the keys that were picked. The task: each query must find the one key that holds its number.
"""

from typing import Any

import torch
from torch import nn

import attn_mlir

BLOCK, PICKED, LENGTH, DIM = 32, 4, 512, 32


class SelectedAttention(nn.Module):
    """One head that sees `PICKED` blocks of keys for each query."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.of_query, self.of_block = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)

    def forward(self, asked: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`asked` [B, Sq, DIM] attends to `x` [B, LENGTH, DIM]."""
        blocks = self.of_block(x.unflatten(1, (-1, BLOCK))).amax(2)
        of_blocks = self.of_query(asked) @ blocks.mT / DIM**0.5  # [B, Sq, blocks]
        picked = of_blocks.topk(PICKED, dim=-1).indices.int().unsqueeze(1)

        def with_block(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + of_blocks[b, q_idx, kv_idx // BLOCK]

        q, k, v = self.query(asked).unsqueeze(1), self.key(x).unsqueeze(1), self.value(x).unsqueeze(1)
        return attn_mlir.attention(q, k, v, score_mod=with_block, key_index=picked, key_block=(1, BLOCK)).squeeze(1)


def train(steps: int = 60, seed: int = 0) -> list[float]:
    """Losses of the training."""
    torch.manual_seed(seed)
    model = SelectedAttention()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        x = torch.randn(2, LENGTH, DIM)
        where = torch.randint(LENGTH, (2, 64))
        asked = torch.take_along_dim(x, where.unsqueeze(-1), 1)
        loss = (model(asked, x) - asked).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    losses = train()
    for step in (0, *range(9, len(losses), 10)):
        print(f"step {step + 1:3}: loss {losses[step]:.3f}")


if __name__ == "__main__":
    main()
