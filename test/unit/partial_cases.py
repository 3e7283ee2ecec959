"""Rows for partial results, each with its weights in float64 by plain torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from attn_mlir import Partial, attention, kv_len, q_len, rows
from attn_mlir.frontend.elementary import exp

Tensor = torch.Tensor


def two_reductions(s: Any) -> Any:
    """A user's row, which normalises by two sums of its own."""
    e = exp(s)
    return e / (1 + e.sum() + (s * s).sum())


def relu_normalised(s: Any) -> Any:
    w = s.max(0.0)
    return w / (w.sum() + 1e-6)


def _softmax(s: Tensor, present: Tensor) -> Tensor:
    return torch.where(present, torch.where(present, s, -1e30).softmax(-1), 0.0)


def _two(s: Tensor, present: Tensor) -> Tensor:
    e, t = torch.where(present, s.exp(), 0.0), torch.where(present, s * s, 0.0)
    return e / (1 + e.sum(-1, keepdim=True) + t.sum(-1, keepdim=True))


def _relu(s: Tensor, present: Tensor) -> Tensor:
    w = torch.where(present, s.relu(), 0.0)
    return w / (w.sum(-1, keepdim=True) + 1e-6)


def _retention(s: Tensor, present: Tensor) -> Tensor:
    w = torch.where(present, s, 0.0)
    return w / w.abs().sum(-1, keepdim=True).clamp(min=1.0).detach()


def _sigmoid(s: Tensor, present: Tensor) -> Tensor:
    return torch.where(present, s.sigmoid(), 0.0)


ROWS: dict[str, tuple[Callable[..., Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "softmax": (rows.softmax, _softmax),
    "sigmoid": (rows.sigmoid, _sigmoid),
    "relu": (relu_normalised, _relu),
    "retention": (rows.retention, _retention),
    "two_reductions": (two_reductions, _two),
}


@dataclass
class Case:
    """Attention with captured slopes and a mask, both of which read positions and lengths of the whole sequence."""

    row: str
    slopes: Tensor

    def partial(self, q: Tensor, k: Tensor, v: Tensor, begin: int, end: int, **options: Any) -> Partial:
        """That of the keys [begin, end) of k and v."""
        part = k[:, :, begin:end], v[:, :, begin:end]
        return attention(q, *part, **self.options(), return_partial=True, kv_offset=begin, kv_len=k.shape[2], **options)

    def parts(self, q: Tensor, k: Tensor, v: Tensor, limits: Sequence[int], **options: Any) -> list[Partial]:
        return [self.partial(q, k, v, a, b, **options) for a, b in pairwise(limits)]

    def options(self) -> dict[str, Any]:
        slopes = self.slopes

        def score(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return s + slopes[h] * (kv_idx - q_idx) / kv_len()

        def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return (q_idx + kv_len() - q_len() >= kv_idx) & (q_idx % 5 != 3)

        return {"row": ROWS[self.row][0], "score_mod": score, "mask_mod": mask}

    def reference(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o in float64, of all keys."""
        q, k, v = (x.double() for x in (q, k, v))
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        s = q @ k.mT / q.shape[3] ** 0.5
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        s = s + self.slopes.double().to(s.device)[:, None, None] * (j - i).to(s.device) / k.shape[2]
        present = ((i + k.shape[2] - q.shape[2] >= j) & (i % 5 != 3)).to(s.device)
        return ROWS[self.row][1](s, present) @ v


def inputs(queries: int, keys: int, dtype: torch.dtype = torch.float32, dim: int = 16) -> list[Tensor]:
    """q of 4 heads, k and v of 2."""
    return [torch.randn(2, heads, length, dim).to(dtype) for heads, length in ((4, queries), (2, keys), (2, keys))]
