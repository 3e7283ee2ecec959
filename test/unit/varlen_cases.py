"""Attentions on packed sequences, each with the same in float64 by plain torch, sequence by sequence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from attn_mlir import attention_varlen, dropout_mask, kv_len, masks, mods, rows

LENGTHS = ((17, 0, 300, 1, 5, 40, 0), (17, 3, 300, 1, 2, 0, 0))
"""Of queries and keys: without queries, without keys, fewer keys than queries, neither."""
SEED = (7, 11)
Tensor = torch.Tensor
Reference = Callable[[Tensor, Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""From the scores [H, Sq, Skv] of sequence b, which keys are present, kept: weights and lse."""


def offsets(lengths: Sequence[int]) -> Tensor:
    """cu_seqlens."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def softmax(s: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of rows of scores, -inf where absent, and their lse; 0 and -inf without keys."""
    lse = torch.logsumexp(s, -1)
    some = torch.isfinite(lse)
    return torch.exp(s - torch.where(some, lse, 0.0)[..., None]), lse


@dataclass
class Case:
    """What `attention_varlen` takes besides tensors and offsets, and the same for one sequence: scores, mask, weights."""

    options: dict[str, Any]
    score: Callable[..., Tensor] = lambda s, b, h, i, j, sizes: s
    keep: Callable[..., Tensor] = lambda i, j, sizes: i + j >= 0
    weigh: Callable[[Tensor, Tensor], Tensor] | None = None
    """From scores and presence to weights; None: softmax."""
    heads: tuple[int, int] = (4, 2)
    captures: list[Tensor] = field(default_factory=list)

    def tensors(self, lengths: tuple[Sequence[int], Sequence[int]], dtype: torch.dtype = torch.float32, dim: int = 16) -> list[Tensor]:
        """q, k and v, which need gradients."""
        shapes = [(sum(lengths[0]), self.heads[0], dim), *[(sum(lengths[1]), self.heads[1], dim)] * 2]
        return [torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]

    def run(self, q: Tensor, k: Tensor, v: Tensor, lengths: tuple[Sequence[int], Sequence[int]], **options: Any) -> Any:
        """The attention itself."""
        return attention_varlen(q, k, v, offsets(lengths[0]), offsets(lengths[1]), **self.options, **options)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, lengths: tuple[Sequence[int], Sequence[int]]) -> tuple[Tensor, Tensor]:
        """o and lse of all sequences, in float64."""
        outputs, sums, first, key = [], [], 0, 0
        for b, (sq, skv) in enumerate(zip(*lengths, strict=True)):
            one = self._sequence(b, q[first : first + sq].double(), k[key : key + skv].double(), v[key : key + skv].double())
            outputs.append(one[0])
            sums.append(one[1])
            first, key = first + sq, key + skv
        return torch.cat(outputs), torch.cat(sums, 1)

    def _sequence(self, b: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = torch.einsum("ihd,jhd->hij", q, k) / q.shape[2] ** 0.5
        h, i, j = torch.meshgrid(*(torch.arange(n) for n in s.shape), indexing="ij")
        sizes = (q.shape[0], k.shape[0])
        s = self.score(s, b, h, i, j, sizes)
        present = self.keep(i, j, sizes)
        p, lse = softmax(torch.where(present, s, -torch.inf))
        if self.weigh is not None:
            p = torch.where(present, self.weigh(s, present), 0.0)
        if "dropout_p" in self.options:
            kept = dropout_mask(b + 1, q.shape[1], q.shape[0], k.shape[0], self.options["dropout_p"], SEED, q.device)[b]
            p = torch.where(kept, p, 0.0) / (1 - self.options["dropout_p"])
        return torch.einsum("hij,jhd->ihd", p, v), lse


def _bottom(i: Tensor, j: Tensor, sizes: tuple[int, int]) -> Tensor:
    return i + sizes[1] - sizes[0] >= j


def _window(i: Tensor, j: Tensor, sizes: tuple[int, int]) -> Tensor:
    position = i + sizes[1] - sizes[0]
    return (position - j <= 20) & (j <= position)


def _alibi() -> Case:
    slopes = torch.rand(4, requires_grad=True)

    def score(s: Tensor, b: int, h: Tensor, i: Tensor, j: Tensor, sizes: tuple[int, int]) -> Tensor:
        return s + slopes.double()[h] * (j - i - sizes[1] + sizes[0])

    options = {"score_mod": mods.alibi(slopes, align="bottom_right"), "mask_mod": masks.causal("bottom_right")}
    return Case(options, score, _bottom, captures=[slopes])


def _tables() -> Case:
    """Captures by sequence, by key, and by the lengths of the sequence; a mod of q and one of k."""
    of_sequence, of_key, gain = (x.requires_grad_() for x in (torch.randn(7, 4), torch.randn(4, 700), torch.randn(4, 16)))

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + of_sequence[b, h] + of_key[h, kv_len() - 1 - kv_idx]

    def score(s: Tensor, b: int, h: Tensor, i: Tensor, j: Tensor, sizes: tuple[int, int]) -> Tensor:
        return s + of_sequence.double()[b, h] + of_key.double()[h, sizes[1] - 1 - j]

    options = {"score_mod": score_mod, "query_mod": lambda x, b, h, i, d: x * gain[h, d]}
    return _Gained(options, score, captures=[of_sequence, of_key, gain])


class _Gained(Case):
    """Queries are multiplied by the last capture."""

    def _sequence(self, b: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super()._sequence(b, q * self.captures[-1].double(), k, v)


def _retention(s: Tensor, present: Tensor) -> Tensor:
    return s / torch.clamp(torch.where(present, s, 0.0).abs().sum(-1, keepdim=True).detach(), min=1.0)


def _cap(s: Tensor, *_: Any) -> Tensor:
    return 5.0 * torch.tanh(s / 5.0)


CASES: dict[str, Callable[[], Case]] = {
    "causal": lambda: Case({"mask_mod": masks.causal()}, keep=lambda i, j, _: i >= j, heads=(16, 1)),
    "alibi": _alibi,
    "window": lambda: Case(
        {"mask_mod": masks.sliding_window(20, 0, align="bottom_right"), "score_mod": mods.softcap(5.0)}, _cap, _window, heads=(4, 4)
    ),
    "tables": _tables,
    "sigmoid": lambda: Case({"row": rows.sigmoid}, weigh=lambda s, _: torch.sigmoid(s)),
    "relu": lambda: Case({"row": rows.relu, "mask_mod": masks.causal("bottom_right")}, keep=_bottom, weigh=lambda s, _: torch.relu(s)),
    "retention": lambda: Case({"row": rows.retention, "mask_mod": masks.causal()}, keep=lambda i, j, _: i >= j, weigh=_retention),
    "dropout": lambda: Case({"dropout_p": 0.3, "dropout_seed": SEED, "mask_mod": masks.causal("bottom_right")}, keep=_bottom),
}
