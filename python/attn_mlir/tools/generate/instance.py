"""An instance: the traits of one forward or backward pass, and the attention that they mean."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import attn_mlir
from attn_mlir.api.ahead import InputSpec, requests_of
from attn_mlir.api.inputs import check_head_dim
from attn_mlir.api.mask_strings import window_of
from attn_mlir.backends.ahead.generated import GeneratedEntry
from attn_mlir.backends.ahead.request import Request
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.passes.options import suggest
from attn_mlir.tools.fmha.bias import Bias
from attn_mlir.tools.fmha.names import BIASES, trait_words
from attn_mlir.tools.fmha.problem import score_mod

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
ROWS: dict[str, Callable[..., Any]] = {
    "softmax": attn_mlir.rows.softmax,
    "softmax1": attn_mlir.rows.softmax1,
    "sigmoid": attn_mlir.rows.sigmoid,
    "relu": attn_mlir.rows.relu,
    "relu_squared": attn_mlir.rows.relu_squared,
    "relu_normalized": attn_mlir.rows.relu_normalized,
    "retention": attn_mlir.rows.retention,
}
_LAYOUTS = ("bhsd", "bshd")
_SCALE = 0.3
"""None of the usual ones, which would be constants of kernels: each call tells its scale."""
_GIVEN = {
    "scale": "SCALE", "cap": "CAP", "dropout_seed": "SEED", "dropout_offset": "OFFSET", "left": "LEFT", "right": "RIGHT", "sink": "SINK",
    "bias": "BIAS", "slopes": "SLOPES",
}  # fmt: skip
"""What the parts that traits mean capture, and the role that it has."""


@dataclass(frozen=True)
class Instance:
    """One kernel instance.

    `direction` is "fwd" or "bwd", which comes with the forward pass that training takes. `mask` is a string as `masks.parse` takes it,
    whose numbers each call gives: "t:1,0" serves all windows to the left. `bias` is "n", "e:0", "e:1", "e:2", "a:0" or "a:1". `row` is
    one of `ROWS`, or a function.

    Functions of its own, `row`, `score_mod` and `mask_mod`, need a `variant`: the name by which calls ask for them. What these capture is
    given by name in each call; `wrt` names what of it has a gradient.
    """

    direction: str = "fwd"
    dtype: str = "fp16"
    head_dim: int = 128
    value_dim: int = 0
    row: str | Callable[..., Any] = "softmax"
    mask: str = "0"
    bias: str = "n"
    layout: str = "bhsd"
    soft_cap: bool = False
    dropout: bool = False
    lse: bool = False
    bias_gradient: bool = False
    deterministic: bool = False
    variant: str = ""
    score_mod: Callable[..., Any] | None = None
    mask_mod: Callable[..., Any] | None = None
    wrt: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check(self)

    @property
    def backward(self) -> bool:
        """Whether it is one of a backward pass."""
        return self.direction == "bwd"

    @property
    def columns(self) -> int:
        """Those of v."""
        return self.value_dim or self.head_dim

    @property
    def row_name(self) -> str:
        """The row as a trait."""
        return self.row if isinstance(self.row, str) else "own"

    @property
    def bias_kind(self) -> str:
        """The bias as a trait."""
        found = Bias.decode(self.bias)
        return found.kind if found.kind == "n" else f"{found.kind}:{found.rank}"

    @property
    def mask_kind(self) -> str:
        """The mask as a trait: without its numbers, which each call gives."""
        window = window_of(self.mask)
        side = "b" if window.bottom_right else "t"
        if window.left is None and window.right is None:
            return "tn" if self.mask != "0" and side == "t" and self.bias_kind[0] == "a" else "0"
        if window.left is None and window.right == 0:
            return side
        return side + "".join(["l" * (window.left is not None), "r" * (window.right is not None), "s" * bool(window.sink)])

    @property
    def name(self) -> str:
        """Such as fmha_fwd_d128_fp16_batch_bhsd_softmax_nlogits_nbias_mt_nlse_ndropout, as CK's generate.py names its kernels."""
        dims = f"d{self.head_dim}" + ("" if self.columns == self.head_dim else f"x{self.columns}")
        kind, _, rank = self.bias_kind.partition(":")
        mask = "" if self.mask_kind == "0" else self.mask_kind
        flags = [("lse", self.lse), ("dropout", self.dropout)]
        if self.backward:
            flags = [("lse", self.lse), ("dbias", self.bias_gradient), ("dropout", self.dropout), ("deterministic", self.deterministic)]
        words = trait_words(self.soft_cap, BIASES[kind] + rank, mask, flags)
        row = [self.row_name, *([self.variant] if self.variant else [])]
        return "_".join([f"fmha_{self.direction}_{dims}_{self.dtype}_batch_{self.layout}", *row, *words])

    def traits(self) -> dict[str, str | int | bool]:
        """The traits by their names in C."""
        return {
            "dtype": self.dtype,
            "head_dim": self.head_dim,
            "value_dim": self.columns,
            "row": self.row_name,
            "mask": self.mask_kind,
            "bias": self.bias_kind,
            "layout": self.layout,
            "variant": self.variant,
            "soft_cap": self.soft_cap,
            "dropout": self.dropout,
            "lse": self.lse,
            "bias_gradient": self.bias_gradient,
            "deterministic": self.deterministic,
        }

    def attention(self) -> attn_mlir.Attention:
        """The attention. Sizes of what it captures do not matter, but for those of 1."""
        kind = Bias.decode(self.bias)
        bias = slopes = None
        if kind.kind == "e":
            bias = torch.zeros(2 if kind.rank > 1 else 1, 2 if kind.rank > 0 else 1, 2, 2, dtype=DTYPES[self.dtype])
        if kind.kind == "a":
            slopes = torch.zeros(2 if kind.rank else 1, 2)
        score = self.score_mod or score_mod(30.0 if self.soft_cap else 0.0, bias, slopes, self.mask)
        mask = self.mask_mod or (None if self.mask_kind == "0" else attn_mlir.masks.parse(self.mask))
        layout: Any = self.layout
        return attn_mlir.Attention(
            row=ROWS[self.row] if isinstance(self.row, str) else self.row,
            score_mod=score,
            mask_mod=mask,
            scale=_SCALE,
            layout=layout,
            return_lse=self.lse,
            dropout_p=0.1 if self.dropout else 0.0,
        )

    def requests(self) -> tuple[Request, Request]:
        """What a backend compiles, without and with the user's lines. Raises ArgumentError or UnsupportedError."""
        inputs = InputSpec(DTYPES[self.dtype], self.head_dim, self.columns)
        own = {"e": ["bias"], "a": ["slopes"], "n": []}[self.bias_kind[0]] if self.bias_gradient else []
        wrt = ["q", "k", "v", *own, *self.wrt] if self.backward else None
        more: dict[str, Any] = {"backward": self.backward, "wrt": wrt, "deterministic": self.deterministic}
        plain, located = requests_of(self.attention(), inputs, None, self.name, **more)
        return replace(plain, inference=not self.backward), replace(located, inference=not self.backward)

    def _own_captures(self) -> list[str]:
        """What the parts that traits mean capture."""
        window = window_of(self.mask)
        there = {
            "scale": True,
            "cap": self.soft_cap,
            "dropout_seed": self.dropout,
            "dropout_offset": self.dropout,
            "left": window.left is not None,
            "right": window.right is not None and (window.left is not None or window.right != 0),
            "sink": bool(window.sink),
            "bias": self.bias_kind[0] == "e",
            "slopes": self.bias_kind[0] == "a",
        }
        return [name for name, is_there in there.items() if is_there]

    def entry(self, request: Request) -> GeneratedEntry:
        """What the dispatcher knows of it. Raises ArgumentError for captures that it could not tell apart."""
        if tuple(request.outputs) not in ((), ("lse",)):
            raise UnsupportedError(f"{self.name} has the row outputs {', '.join(request.outputs)}: instances have o and lse alone")
        used = self._own_captures()
        names = [capture.name for capture in request.captures]
        # A second capture of a name has a number after it.
        twice = [name for name in used if any(re.fullmatch(rf"{name}_[0-9]+", other) for other in names)]
        if twice:
            raise ArgumentError(f"{self.name}: a function captures '{twice[0]}', as the instance does itself: give it another name")
        roles = []
        for capture in request.captures:
            given = capture.kind in ("drop", "keep")
            roles.append("PROBABILITY" if given else _GIVEN[capture.name] if capture.name in used else "NAMED")
        return GeneratedEntry(self.name, self.backward, self.traits(), tuple(roles))


def _check(given: Instance) -> None:
    """Raises ArgumentError for traits that there are not, UnsupportedError for those that do not go together."""
    for name, choices in (("direction", ("fwd", "bwd")), ("dtype", tuple(DTYPES)), ("layout", _LAYOUTS)):
        value = getattr(given, name)
        if value not in choices:
            raise ArgumentError(f"{name} of an instance is one of {', '.join(choices)}, got {value!r}{suggest(str(value), choices)}")
    if isinstance(given.row, str) and given.row not in ROWS:
        raise ArgumentError(f"row of an instance is a function or one of {', '.join(ROWS)}, got '{given.row}'{suggest(given.row, ROWS)}")
    for name, size in (("head_dim", given.head_dim), ("value_dim", given.columns)):
        if isinstance(size, bool) or not isinstance(size, int):
            raise ArgumentError(f"{name} of an instance is an integer, got {size!r}")
        check_head_dim(f"{name} is", size)
    window_of(given.mask)
    bias = Bias.decode(given.bias)
    own = [name for name in ("score_mod", "mask_mod") if getattr(given, name) is not None] + ["row"] * callable(given.row)
    if bool(own) != bool(given.variant) or not re.fullmatch(r"[A-Za-z0-9_]*", given.variant):
        raise ArgumentError(
            f"variant='{given.variant}' with {' and '.join(own) or 'no functions of its own'}: an instance with functions of its own has a "
            "variant, a name of letters, digits and _ by which calls ask for it, and another one has none"
        )
    if given.score_mod is not None and (bias.kind != "n" or given.soft_cap):
        raise ArgumentError("score_mod takes the place of bias and soft_cap: leave these out, or write them into the function")
    if given.mask_mod is not None and given.mask != "0":
        raise ArgumentError("mask_mod takes the place of mask: leave one of them out")
    if not given.backward and (given.bias_gradient or given.deterministic or given.wrt):
        raise ArgumentError("bias_gradient, deterministic and wrt are traits of a backward pass: direction='bwd'")
    if given.bias_gradient and bias.kind == "n":
        raise ArgumentError("bias_gradient without a bias: bias='e:1', or another one")
    if given.row_name not in ("softmax", "softmax1", "own") and given.lse:
        raise UnsupportedError(f"row '{given.row_name}' has no lse: leave it out")
