"""Families of programs that benchmarks of warps compile, and `generated_hashes.py` some: how each is written, and what it captures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir import masks, mods, rows

_SLOPES, _DOCUMENTS, _NUMBERS = torch.ones(32), torch.zeros(64, dtype=torch.int32), torch.zeros(64)
_BIAS, _HALVES, _WINDOW, _CAP = torch.zeros(4, 64, 64), torch.zeros(4, 64, 64, dtype=torch.float16), 512, 20.0
_TABLE, _OF_BATCH, _LENGTHS = torch.zeros(32768), torch.zeros(4, 64, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)


def alibi(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """A slope for each head times the distance."""
    return s + _SLOPES[h] * (j - i)


def _key_bias(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + _NUMBERS[j]


def _table(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + _NUMBERS[i + j]


def _relative(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + _TABLE[i - j + 16384]


def _dense_bias(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + _BIAS[h, i, j]


def _half_bias(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + _HALVES[h, i, j]


def documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Causal within documents, by the document of each position."""
    return (_DOCUMENTS[i] == _DOCUMENTS[j]) & (i >= j)


def _batched_documents(b: Any, h: Any, i: Any, j: Any) -> Any:
    return _OF_BATCH[b, i] == _OF_BATCH[b, j]


def _padding(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j < _LENGTHS[b]


def _offset(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i + _WINDOW >= j


def _block_causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i // 64 >= j // 64


def _chunked(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i // 1024 == j // 1024) & (i >= j)


def relu_norm(s: Any) -> Any:
    """Positive scores, divided by their sum."""
    w = s.max(0.0)
    return w / (w.sum() + 1e-6)


def layer_norm(s: Any) -> Any:
    """Scores without their mean, by their deviation."""
    centred = s - s.mean()
    return centred / ((centred * centred).mean() + 1e-5).sqrt()


def _two_passes(s: Any) -> Any:
    return (s - s.max() - (s * s).mean()).tanh()


@dataclass(frozen=True)
class Family:
    """How an attention is written, and what it captures for so many heads and positions."""

    written: dict[str, Any]
    captured: Callable[[int, int], list[Any]] = lambda heads, length: []
    masked: bool = True
    form: Any = None
    """What its program has beside that: tensors of dropout's seed and offset."""

    def work(self, length: int) -> float:
        """The pairs that count."""
        pairs = length * length
        return pairs if not self.masked else pairs / 2


def _floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda")


def _of_documents(_: int, length: int) -> list[Any]:
    return [(torch.arange(length, device="cuda") * 4 // max(length, 4)).to(torch.int32)]


def _dropped() -> list[Any]:
    seeds = [torch.tensor(number, dtype=torch.int64, device="cuda") for number in (123456789012345, 77)]
    return [*seeds, round(0.1 * 2**32), 1 / 0.9]


_CAUSAL = {"mask_mod": masks.causal()}
FAMILIES = {
    "full": Family({}, masked=False),
    "causal": Family(_CAUSAL),
    "window": Family({"mask_mod": masks.sliding_window(_WINDOW)}, lambda h, n: [_WINDOW, 0]),
    "documents": Family({"mask_mod": documents}, _of_documents),
    "alibi": Family({**_CAUSAL, "score_mod": alibi}, lambda h, n: [torch.linspace(0.5, 0.01, h, device="cuda")]),
    "softcap": Family({**_CAUSAL, "score_mod": mods.softcap(_CAP)}, lambda h, n: [_CAP]),
    "keys": Family({"score_mod": _key_bias}, lambda h, n: [_floats(n)], masked=False),
    "table": Family({"score_mod": _table}, lambda h, n: [_floats(2 * n)], masked=False),
    "bias": Family({"score_mod": _dense_bias}, lambda h, n: [_floats(h, n, n)], masked=False),
    "causal-bias": Family({**_CAUSAL, "score_mod": _dense_bias}, lambda h, n: [_floats(h, n, n)]),
    "half-bias": Family({"score_mod": _half_bias}, lambda h, n: [_floats(h, n, n).half()], masked=False),
    "causal-half-bias": Family({**_CAUSAL, "score_mod": _half_bias}, lambda h, n: [_floats(h, n, n).half()]),
    "relative": Family({"score_mod": _relative}, lambda h, n: [_floats(32768)], masked=False),
    "batched": Family({"mask_mod": _batched_documents}, lambda h, n: [_of_documents(h, n)[0].repeat(16, 1)], masked=False),
    "padding": Family({"mask_mod": _padding}, lambda h, n: [torch.full((16,), n * 3 // 4, dtype=torch.int32, device="cuda")], masked=False),
    "capped": Family({"score_mod": mods.softcap(_CAP)}, lambda h, n: [_CAP], masked=False),
    "sigmoid": Family({**_CAUSAL, "row": rows.sigmoid}),
    "sigmoids": Family({"row": rows.sigmoid}, masked=False),
    "relu": Family({**_CAUSAL, "row": relu_norm}),
    "relus": Family({"row": relu_norm}, masked=False),
    "retention": Family({**_CAUSAL, "row": rows.retention}),
    "offset": Family({"mask_mod": _offset}, lambda h, n: [_WINDOW]),
    "block-causal": Family({"mask_mod": _block_causal}),
    "chunked": Family({"mask_mod": _chunked}),
    "dropout": Family({}, lambda h, n: _dropped(), masked=False, form=("tensor", "tensor")),
    "causal-dropout": Family(_CAUSAL, lambda h, n: _dropped(), form=("tensor", "tensor")),
    "window-dropout": Family(
        {"mask_mod": masks.sliding_window(_WINDOW)},
        lambda h, n: [*_dropped()[:-1], _WINDOW, 0, _dropped()[-1]],
        form=("tensor", "tensor"),
    ),
    "norm": Family({"row": layer_norm}, masked=False),
    "passes": Family({**_CAUSAL, "row": _two_passes}),
    "passess": Family({"row": _two_passes}, masked=False),
}
"""By their names."""
