"""The problems that the NVIDIA benchmark poses: tensors in half precision, their float32 reference, and how many FLOPs they are worth."""

import dataclasses
from functools import cached_property

import torch
from kinds import Kind

from attn_mlir import masks, mods, rows

WINDOW, CAP = 1024, 30.0
VARIANTS = ("window1024", "softcap30", "alibi", "sigmoid", "approximate_sigmoid", "relu", "retention", "relu_normalized")
"""Attentions other than softmax over full and causal rows; all of them causal."""
WITHOUT_PEERS = VARIANTS[3:]
"""Rows that no other system computes: they are compared with softmax, causal, at the same shape."""
_SPECIAL = {"softcap30": 2, "sigmoid": 2, "relu": 0, "retention": 0, "relu_normalized": 0}
"""Results of the special function unit for each pair; 1 where nothing is said."""
_BACKWARD = 2.5
"""Five products of matrices in the backward, two in the forward pass."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem. `kind` names the attention: "full", "causal" or one of VARIANTS."""

    kind: str
    batch: int
    heads: int
    kv_heads: int
    length: int
    dim: int
    dtype: torch.dtype = torch.float16

    @property
    def name(self) -> str:
        heads = f"H{self.heads}" if self.heads == self.kv_heads else f"H{self.heads}:{self.kv_heads}"
        return f"{self.kind} B{self.batch} {heads} S{self.length} D{self.dim}"

    @property
    def pairs(self) -> int:
        """How many pairs of a query and a key are present, in one head."""
        s = self.length
        if self.kind == "full":
            return s * s
        causal = s * (s + 1) // 2
        hidden = max(s - WINDOW - 1, 0)
        return causal - hidden * (hidden + 1) // 2 if self.kind == "window1024" else causal

    def flops(self, backward: bool = False) -> float:
        """Of the matrix products over present pairs, as the tables count them: 4 D for a pair, 2.5 times that backward."""
        return 4.0 * self.dim * self.pairs * self.batch * self.heads * (_BACKWARD if backward else 1.0)

    @property
    def exponentials(self) -> float:
        """How many exponentials, hyperbolic tangents and reciprocals of pairs a pass needs."""
        return float(_SPECIAL.get(self.kind, 1) * self.pairs * self.batch * self.heads)

    def bytes(self, backward: bool = False) -> float:
        """What has to be read and written at least: q, k, v, o, and lse; backward also do, dq, dk, dv."""
        width = self.dtype.itemsize
        tokens = self.batch * self.length
        query, key = (tokens * heads * self.dim * width for heads in (self.heads, self.kv_heads))
        return 4.0 * tokens * self.heads + (4.0 * query + 4.0 * key if backward else 2.0 * query + 2.0 * key)


def _retention(s: torch.Tensor) -> torch.Tensor:
    return s / s.detach().abs().sum(-1, keepdim=True).clamp(min=1.0)


def _relu_normalized(s: torch.Tensor) -> torch.Tensor:
    r = torch.relu(s)
    return r / r.sum(-1, keepdim=True).clamp(min=1e-7)


def kind_of(case: Case, device: str) -> Kind:
    """The attention of a case."""
    causal = masks.causal()
    if case.kind == "full":
        return Kind()
    slopes = mods.alibi_slopes(case.heads, device)
    kinds = {
        "causal": Kind(causal),
        "window1024": Kind(masks.sliding_window(WINDOW)),
        "softcap30": Kind(causal, lambda score, b, h, q_idx, kv_idx: CAP * torch.tanh(score / CAP)),
        "alibi": Kind(causal, lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)),
        "sigmoid": Kind(causal, row=rows.sigmoid, eager_row=torch.sigmoid),
        "approximate_sigmoid": Kind(causal, row=rows.approximate_sigmoid, eager_row=torch.sigmoid),
        "relu": Kind(causal, row=rows.relu, eager_row=torch.relu),
        "retention": Kind(causal, row=rows.retention, eager_row=_retention),
        "relu_normalized": Kind(causal, row=rows.relu_normalized, eager_row=_relu_normalized),
    }
    return kinds[case.kind]


def table_cases(quick: bool) -> list[Case]:
    """The rows of the published table, in its order; with `quick` two small ones."""
    if quick:
        return [Case(kind, 1, 2, 2, 256, 64) for kind in ("causal", "full")]
    shapes = [
        *((b, 16, 16, s, 128) for b, s in ((16, 1024), (4, 4096), (2, 8192), (1, 16384))),
        (1, 32, 8, 8192, 128),
        *((b, 32, 32, s, 64) for b, s in ((16, 1024), (4, 4096), (2, 8192), (1, 16384))),
    ]
    return [Case(kind, *shape) for shape in shapes for kind in ("causal", "full")]


def variant_cases(quick: bool) -> list[Case]:
    """The variants at one shape."""
    return [Case(kind, 1, 2, 2, 256, 64) if quick else Case(kind, 4, 16, 16, 4096, 128) for kind in VARIANTS]


@dataclasses.dataclass(frozen=True)
class Slice:
    """One key head of one batch with the query heads that read it, and what its results should be.

    `wanted` are o, dq, dk, dv in float32, [heads, S, D]; `allowed` the largest absolute error of each.
    """

    batch: int
    kv_head: int
    wanted: list[torch.Tensor]
    allowed: list[float]


class Problem:
    """The tensors of a case, [B, S, H, D], and the reference."""

    def __init__(self, case: Case, device: str = "cuda", backward: bool = False) -> None:
        self.case, self.kind, self.device, self.backward = case, kind_of(case, device), device, backward
        generator = torch.Generator(device).manual_seed(0)

        def normal(heads: int) -> torch.Tensor:
            shape = (case.batch, case.length, heads, case.dim)
            return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(case.dtype)

        self.q, self.k, self.v, self.do = normal(case.heads), normal(case.kv_heads), normal(case.kv_heads), normal(case.heads)
        for tensor in (self.q, self.k, self.v):
            tensor.requires_grad_(backward)

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v."""
        return self.q, self.k, self.v

    @cached_property
    def slices(self) -> list[Slice]:
        """The first key head of the first batch and the last one of the last, with their references."""
        ends = {(0, 0), (self.case.batch - 1, self.case.kv_heads - 1)}
        return [self._slice(batch, head) for batch, head in sorted(ends)]

    def check(self, results: list[torch.Tensor]) -> tuple[float, str]:
        """The largest error of o (and dq, dk, dv), as a fraction of what is allowed, and what is wrong, or ""."""
        worst = 0.0
        for name, result in zip(("o", "dq", "dk", "dv"), results, strict=False):
            if not bool(torch.isfinite(result).all()):
                return float("inf"), f"{name} is not finite"
        group = self.case.heads // self.case.kv_heads
        for part in self.slices:
            for i, result in enumerate(results):
                heads = range(part.kv_head * group, (part.kv_head + 1) * group) if i < 2 else [part.kv_head]
                got = torch.stack([result[part.batch, :, head] for head in heads]).float()
                error = (got - part.wanted[i]).abs().max().item()
                worst = max(worst, error / part.allowed[i])
        return worst, "" if worst <= 1 else f"wrong: {worst:.1f} times the allowed error"

    def _slice(self, batch: int, kv_head: int) -> Slice:
        wanted = self._formula(batch, kv_head, torch.float32)
        eager = self._formula(batch, kv_head, self.case.dtype)
        eps = torch.finfo(self.case.dtype).eps
        allowed = []
        for name, w, e in zip(("o", "dq", "dk", "dv"), wanted, eager, strict=False):
            largest = w.abs().max().item()
            # Twice the error of PyTorch's formula in the same type, and rounding; several roundings on the way to a gradient.
            allowed.append(2 * (e.float() - w).abs().max().item() + (0.5 if name == "o" else 2.0) * eps * largest)
        return Slice(batch, kv_head, wanted, allowed)

    def _formula(self, batch: int, kv_head: int, dtype: torch.dtype) -> list[torch.Tensor]:
        """o and, for backward, dq, dk and dv of one key head: [heads, S, D] in `dtype`, key heads [1, S, D]."""
        group = self.case.heads // self.case.kv_heads
        k, v = (t.detach()[batch, :, kv_head].to(dtype).requires_grad_(self.backward) for t in (self.k, self.v))
        parts: list[list[torch.Tensor]] = []
        for head in range(kv_head * group, (kv_head + 1) * group):
            q = self.q.detach()[batch, :, head].to(dtype).requires_grad_(self.backward)
            o = self._head(q, k, v, head)
            gradients = torch.autograd.grad(o, (q, k, v), self.do[batch, :, head].to(dtype)) if self.backward else ()
            parts.append([o.detach(), *gradients])
        made = [torch.stack([part[i] for part in parts]) for i in range(min(2, len(parts[0])))]
        keys = [torch.stack([part[i].float() for part in parts]).sum(0, keepdim=True).to(dtype) for i in range(2, len(parts[0]))]
        return [*made, *keys]

    def _head(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, head: int) -> torch.Tensor:
        scores = (q @ k.mT) * self.case.dim**-0.5
        index = torch.arange(self.case.length, device=self.device)
        q_idx, kv_idx = index[:, None], index[None, :]
        if self.kind.score is not None:
            scores = self.kind.score(scores, 0, head, q_idx, kv_idx).to(q.dtype)
        present = None if self.kind.mask is None else self.kind.mask(0, 0, q_idx, kv_idx)
        return self.kind.weights(scores, present).to(q.dtype) @ v
