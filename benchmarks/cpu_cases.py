"""The problems that the CPU benchmark poses, and how each system is asked to solve them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from kinds import Kind

import attn_mlir
from attn_mlir import masks, mods, rows

System = Callable[[], torch.Tensor]
WINDOW, CAP, DOCUMENTS = 256, 20.0, 6


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem. `kind` names the attention: a key of KINDS."""

    group: str
    kind: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    dim: int
    dtype: torch.dtype

    @property
    def name(self) -> str:
        heads = f"H{self.heads}" if self.heads == self.kv_heads else f"H{self.heads}:{self.kv_heads}"
        lengths = f"S{self.queries}" if self.queries == self.keys else f"Sq{self.queries} Skv{self.keys}"
        return f"{self.kind} B{self.batch} {heads} {lengths} D{self.dim} {self.element}"

    @property
    def element(self) -> str:
        return {torch.float32: "f32", torch.bfloat16: "bf16"}[self.dtype]


def kinds(heads: int, length: int) -> dict[str, Kind]:
    """All attentions, for tensors of some number of heads and of keys."""
    causal = masks.causal()
    slopes = mods.alibi_slopes(heads)
    ends = torch.arange(1, DOCUMENTS) * length // DOCUMENTS + 3
    ids = torch.bucketize(torch.arange(length), ends, right=True)
    return {
        "full": Kind(),
        "causal": Kind(causal, is_causal=True),
        "window": Kind(masks.sliding_window(WINDOW)),
        "alibi": Kind(causal, mods.alibi(slopes), bias=lambda h, q_idx, kv_idx: slopes[h] * (kv_idx - q_idx)),
        "softcap": Kind(causal, lambda score, b, h, q_idx, kv_idx: CAP * torch.tanh(score / CAP)),
        "documents": Kind(masks.document(ids)),
        "sigmoid": Kind(causal, row=rows.sigmoid, eager_row=torch.sigmoid),
        "relu": Kind(causal, row=rows.relu, eager_row=torch.relu),
    }


def cases(quick: bool) -> list[Case]:
    """All cases; with `quick` one small case of each kind, for tests."""
    if quick:
        small = [Case("main", kind, 1, 4, 4, 48, 48, 16, torch.float32) for kind in kinds(4, 48)]
        half = Case("main", "causal", 1, 4, 4, 48, 48, 16, torch.bfloat16)
        return [*small, half, Case("decode", "full", 1, 8, 1, 1, 96, 16, torch.float32)]
    both = (torch.float32, torch.bfloat16)
    custom = ("window", "alibi", "softcap", "documents", "sigmoid", "relu")
    return [
        *(Case("main", kind, 1, 8, 8, 2048, 2048, dim, dtype) for dtype in both for dim in (64, 128) for kind in ("causal", "full")),
        *(Case("custom", kind, 1, 8, 8, 2048, 2048, 64, dtype) for dtype in both for kind in custom),
        *(Case("short", "full", 8, 12, 12, length, length, dim, dtype) for dtype in both for dim in (32, 64) for length in (16, 64, 128)),
        *(Case("decode", "full", 1, 32, 4, 1, 4096, dim, dtype) for dtype in both for dim in (64, 128)),
    ]


class Problem:
    """The tensors of a case, its reference, and the systems that solve it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        generator = torch.Generator().manual_seed(0)

        def normal(heads: int, length: int) -> torch.Tensor:
            return torch.randn(case.batch, heads, length, case.dim, generator=generator).to(case.dtype)

        self.q, self.k, self.v = normal(case.heads, case.queries), normal(case.kv_heads, case.keys), normal(case.kv_heads, case.keys)
        self.kind = kinds(case.heads, case.keys)[case.kind]
        self._q_idx, self._kv_idx = torch.arange(case.queries)[:, None], torch.arange(case.keys)[None, :]
        present = None if self.kind.mask is None else self.kind.mask(0, 0, self._q_idx, self._kv_idx)
        self.present = torch.ones(case.queries, case.keys, dtype=torch.bool) if present is None else present

    @property
    def flops(self) -> float:
        """Of the two products, over the keys that are present."""
        return 4.0 * self.case.dim * int(self.present.sum()) * self.case.batch * self.case.heads

    def eager(self, dtype: torch.dtype) -> torch.Tensor:
        """The formula in plain PyTorch, head by head."""
        group = self.case.heads // self.case.kv_heads
        q, k, v = self.q.to(dtype), self.k.to(dtype), self.v.to(dtype)
        return torch.stack([self._eager_head(q[:, h], k[:, h // group], v[:, h // group], h) for h in range(self.case.heads)], dim=1)

    def _eager_head(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, head: int) -> torch.Tensor:
        scores = (q @ k.transpose(-1, -2)) * self.case.dim**-0.5
        if self.kind.score is not None:
            scores = self.kind.score(scores, 0, head, self._q_idx, self._kv_idx).to(q.dtype)
        return self.kind.weights(scores, self.present).to(q.dtype) @ v

    def ours(self) -> System:
        compute = attn_mlir.Attention(row=self.kind.row, score_mod=self.kind.score, mask_mod=self.kind.mask)
        return lambda: compute(self.q, self.k, self.v)

    def sdpa(self) -> tuple[str, System] | str:
        """SDPA and how it is asked ("native", "dense mask"); or, in words, why it cannot."""
        if self.kind.eager_row is not None:
            return "only softmax"
        mask, how = None, "native"
        if self.kind.score is not None and self.kind.bias is None:
            return "scores change by more than a sum"
        if self.kind.bias is not None:
            mask = self.kind.bias(torch.arange(self.case.heads)[:, None, None], self._q_idx, self._kv_idx)
            mask = mask.masked_fill(~self.present, -torch.inf)[None]
        elif self.kind.mask is not None and not self.kind.is_causal:
            mask = self.present
        if mask is not None:
            how = "dense mask"
        causal, grouped = mask is None and self.kind.is_causal, self.case.heads != self.case.kv_heads
        return how, lambda: F.scaled_dot_product_attention(self.q, self.k, self.v, mask, is_causal=causal, enable_gqa=grouped)

    def flex(self) -> System | str:
        """Compiled FlexAttention; its block mask is made beforehand, at no cost to it. Or, in words, why it cannot."""
        if self.kind.eager_row is not None:
            return "only softmax"
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch._dynamo.reset()
        # Every case has a graph of its own for exactly its shapes: the best that FlexAttention can do.
        compiled: Any = torch.compile(flex_attention, dynamic=False)
        blocks = None
        if self.kind.mask is not None:
            blocks = create_block_mask(self.kind.mask, None, None, self.case.queries, self.case.keys, device="cpu")
        grouped = self.case.heads != self.case.kv_heads

        def run() -> torch.Tensor:
            with torch.no_grad():
                return compiled(self.q, self.k, self.v, score_mod=self.kind.score, block_mask=blocks, enable_gqa=grouped)

        return run
