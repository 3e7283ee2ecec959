"""`meta_tensor`: shapes and dtypes of q, k and v without data, and the check of a call against them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from attn_mlir.api.inputs import ELEMENTS, Problem, check_head_dim
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.named_tensors import Dim

_KEYS: Mapping[str, tuple[str, ...]] = {"q": ("B", "Hq", "Sq", "D"), "k": ("B", "Hkv", "Skv", "D"), "v": ("B", "Hkv", "Skv", "Dv")}
LINEAR_KEYS: Mapping[str, tuple[str, ...]] = {"q": ("B", "Hq", "Sq", "D"), "k": ("B", "Hkv", "Sq", "D"), "v": ("B", "H", "Sq", "Dv")}
"""The sizes of the inputs of a linear attention."""
_WORDS = ("batch size", "number of heads", "length", "head dimension")


@dataclasses.dataclass(frozen=True)
class MetaTensor:
    """A shape in the order batch, heads, length, head dimension, and a dtype."""

    shape: tuple[Dim, ...]
    dtype: torch.dtype


def meta_tensor(*shape: Dim, dtype: torch.dtype = torch.float16) -> MetaTensor:
    """Declares an input: meta_tensor(B, H, S, D, dtype=torch.float16).

    A string, as in meta_tensor("B", "H", "S", 128), is a size that differs from call to call; the same string is the
    same size. The order is [B, H, S, D], while the tensors of a call are [B, S, H, D].
    """
    dims = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    for dim in dims:
        if not isinstance(dim, str) and (not isinstance(dim, int) or isinstance(dim, bool) or dim < 0):
            raise ArgumentError(f"meta_tensor takes sizes as numbers or strings, got {dim!r}")
    return MetaTensor(dims, dtype)


class Shapes:
    """What `qkv_meta` says of the calls; `keys` name the sizes of q, k and v, `layout` is the order of the tensors of a call."""

    def __init__(self, qkv_meta: Any, keys: Mapping[str, tuple[str, ...]] = _KEYS, layout: str = "[B, S, H, D]") -> None:
        self._layout = layout
        try:
            q, k, v = qkv_meta
        except (TypeError, ValueError):
            raise ArgumentError("qkv_meta is a tuple of three: meta_tensor(...) for q, k and v") from None
        metas = {name: _meta(name, value) for name, value in zip("qkv", (q, k, v), strict=True)}
        self.dtype = metas["q"].dtype
        self._fixed: dict[str, tuple[int, str, str]] = {}
        """Size to (number, tensor, what it is)."""
        self._named: dict[str, list[tuple[str, str, str]]] = {}
        for name, meta in metas.items():
            if meta.dtype != self.dtype:
                raise ArgumentError(f"qkv_meta: {name} has dtype {meta.dtype} but q has {self.dtype}")
            for key, word, dim in zip(keys[name], _WORDS, meta.shape, strict=True):
                self._add(key, word, name, dim)
        groups = (("Hq", "Hkv", "q", "k and v"),) if keys is _KEYS else (("H", "Hq", "v", "q"), ("H", "Hkv", "v", "k"))
        for many, few, name, others in groups:
            heads, fewer = self._fixed.get(many), self._fixed.get(few)
            if heads and fewer and (fewer[0] == 0 or heads[0] % fewer[0]):
                raise ArgumentError(f"qkv_meta: {name} has {heads[0]} heads, which is no multiple of the {fewer[0]} heads of {others}")
        self.inputs = Inputs(ELEMENTS[self.dtype], self._fixed["D"][0], self._fixed["Dv"][0])

    def check(self, problem: Problem, dtype: torch.dtype) -> None:
        """Raises ArgumentError where a call does not fit."""
        if dtype != self.dtype:
            raise ArgumentError(f"q, k and v have dtype {dtype}, but qkv_meta says {self.dtype}")
        sizes = problem.sizes
        for key, (number, name, word) in self._fixed.items():
            if sizes[key] != number:
                advice = 'a size that differs from call to call is a string there, as in meta_tensor("B", "H", "S", 128)'
                layout = f"qkv_meta is in the order [B, H, S, D], the tensors of a call are {self._layout}"
                raise ArgumentError(f"{name} has {word} {sizes[key]}, but qkv_meta says {number}. {layout}; {advice}.")
        for dim, places in self._named.items():
            (first, word, key), *others = places
            for name, other, place in others:
                if sizes[place] != sizes[key]:
                    one, two = sizes[key], sizes[place]
                    both = f"is the {word} of {first} and the {other} of {name}"
                    raise ArgumentError(f'"{dim}" in qkv_meta {both}, but these are {one} and {two} in this call')

    def fixed(self, key: str) -> int | None:
        """A size that `qkv_meta` gives as a number."""
        return self._fixed[key][0] if key in self._fixed else None

    def _add(self, key: str, word: str, name: str, dim: Dim) -> None:
        if isinstance(dim, str):
            if key in ("D", "Dv"):
                raise ArgumentError(f"qkv_meta: the head dimension of {name} is compiled in and must be a number, got {dim!r}")
            self._named.setdefault(dim, []).append((name, word, key))
            return
        known = self._fixed.setdefault(key, (dim, name, word))
        if known[0] != dim:
            raise ArgumentError(f"qkv_meta: {name} has {word} {dim}, but {known[1]} has {known[0]}")


def _meta(name: str, value: Any) -> MetaTensor:
    """A meta tensor, or anything with a shape and a dtype."""
    try:
        meta = MetaTensor(tuple(value.shape), value.dtype)
    except (AttributeError, TypeError):
        raise ArgumentError(f"qkv_meta: {name} must be a meta_tensor(...), got {type(value).__name__}") from None
    if len(meta.shape) != 4:
        raise ArgumentError(f"qkv_meta: {name} must have 4 dimensions, [batch, heads, length, head dimension], got {list(meta.shape)}")
    if meta.dtype not in ELEMENTS:
        raise ArgumentError(f"qkv_meta: {name} has dtype {meta.dtype}: use torch.float32, torch.float16, torch.bfloat16 or torch.float64")
    if isinstance(meta.shape[3], int):
        check_head_dim(f"qkv_meta: {name} has head dimension", meta.shape[3])
    return meta
