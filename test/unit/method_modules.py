"""Modules that hold an attention or an engine whose function is a method of theirs, as models are written."""

import torch

from attn_mlir import Attention, AttentionEngine, LinearAttention, LinearAttentionEngine, masks, meta_tensor

Tensor = torch.Tensor
META = tuple(meta_tensor("B", 2, "S", 8, dtype=torch.float32) for _ in range(3))
SEQUENCE = tuple(meta_tensor("B", 2, "T", 8, dtype=torch.float32) for _ in range(3))


class Scaled(torch.nn.Module):
    """Scores have a learned factor for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.rand(2) + 0.5)
        self.make()

    def make(self) -> None:
        self.attention = Attention(score_mod=self.scaled, mask_mod=masks.causal(), layout="bshd")

    def scaled(self, score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score * self.factor[h]

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attention(q, k, v)


class OwnRow(Scaled):
    def make(self) -> None:
        self.attention = Attention(row=self.row, layout="bshd")

    def row(self, s: Tensor) -> Tensor:
        e = (s - s.max()).exp() * self.factor.sum()
        return e / (1.0 + e.sum())


class Engine(Scaled):
    def make(self) -> None:
        self.attention = AttentionEngine(META, score_mod=self.scaled_by, mask_mod=masks.causal())

    def scaled_by(self, score: Tensor, custom: object, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score * self.factor[h]


class Linear(Scaled):
    def make(self) -> None:
        self.attention = LinearAttention(decay_mod=self.slower, layout="bshd")

    def slower(self, decay: Tensor, b: Tensor, h: Tensor, t: Tensor) -> Tensor:
        return decay * self.factor[h]

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attention(q, k, v, -torch.ones(q.shape[:3]))


class LinearEngine(Linear):
    def make(self) -> None:
        self.attention = LinearAttentionEngine(SEQUENCE, decay_mod=self.slower_by)

    def slower_by(self, decay: Tensor, custom: object, b: Tensor, h: Tensor, t: Tensor) -> Tensor:
        return decay * self.factor[h]

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return self.attention(q, k, v, -torch.ones(q.shape[:3])).transpose(1, 2)
