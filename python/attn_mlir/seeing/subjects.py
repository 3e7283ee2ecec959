"""What a report is of, for each object that has one."""

from typing import Any

import torch

from attn_mlir.api.describe import explain_entry
from attn_mlir.api.inputs import ELEMENTS, MAX_HEAD_DIM
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.seeing.report import Subject
from attn_mlir.seeing.visualize import visualize

_ROLES: tuple[str, ...] = ("query_mod", "key_mod", "value_mod", "score_mod", "mask_mod", "row")
_MODS: tuple[str, ...] = ("q_mod", "k_mod", "v_mod", "decay_mod", "skip_mod", "erase_mod")


def of_attention(
    attention: Any, *, backward: bool, device: str | None, dtype: torch.dtype | None, head_dim: int | None, **shown: Any
) -> Subject:
    """An `Attention`; `shown` are arguments of `visualize`."""
    last = attention._last
    element, dim = _element(dtype) or last.element, _dim(head_dim)
    inputs = Inputs(element, dim or last.head_dim, dim or last.value_dim, tuple(dim or own for own in last.extra_dims))
    entry, target = attention._entry(inputs)[0], str(device or attention._device)
    if attention._tuning is not None and inputs == last:
        entry = attention._tuning.latest(entry, target)
    functions = dict(zip(_ROLES, attention._functions, strict=True))
    explained = explain_entry(entry, entry.traced.text)
    return Subject("attention", _named(functions), entry, target, explained, _picture(functions["mask_mod"], **shown))


def of_engine(engine: Any, *, backward: bool, device: str | None, dtype: torch.dtype | None, head_dim: int | None, **shown: Any) -> Subject:
    """An `AttentionEngine`."""
    _has_own(engine, dtype, head_dim)
    entry = engine._find(engine._dtypes, None, backward, engine._dropout)[0]
    query_mod, key_mod, value_mod, score_mod, mask_mod, forward, epilogue = engine._functions
    functions = dict(zip(_ROLES, (query_mod, key_mod, value_mod, score_mod, mask_mod, forward), strict=True))
    functions["epilogue"] = epilogue
    found = _picture(mask_mod, **shown)
    return Subject("AttentionEngine", _named(functions), entry, device or engine._device.name or "cpu", engine.explain(), found)


def of_linear(attention: Any, *, backward: bool, device: str | None, dtype: torch.dtype | None, head_dim: int | None) -> Subject:
    """A `LinearAttention`."""
    last = attention._last
    dims = {"head_dim": _dim(head_dim) or last.head_dim, "value_dim": _dim(head_dim) or last.value_dim}
    form = last._replace(element=_element(dtype) or last.element, **dims)
    entry, target = form.find(attention._mods, None)[0], str(device or attention._device)
    if attention._tuning is not None and form == attention._last:
        entry = attention._tuning.latest(entry, target)
    explained = explain_entry(entry, entry.traced.located)
    return Subject("linear attention", _named(dict(zip(_MODS, attention._mods, strict=True))), entry, target, explained)


def of_linear_engine(engine: Any, *, backward: bool, device: str | None, dtype: torch.dtype | None, head_dim: int | None) -> Subject:
    """A `LinearAttentionEngine`."""
    _has_own(engine, dtype, head_dim)
    entry = engine._find(engine._dtypes, None, engine._decay)[0]
    functions = _named(dict(zip(_MODS, engine._mods, strict=True)))
    return Subject("LinearAttentionEngine", functions, entry, device or "cpu", engine.explain())


def _has_own(engine: Any, dtype: torch.dtype | None, head_dim: int | None) -> None:
    if dtype is not None or head_dim is not None:
        raise ArgumentError(f"a {type(engine).__name__} has its own dtype and head dimensions: leave out dtype and head_dim")


def _named(functions: dict[str, Any]) -> dict[str, Any]:
    """Those that are there; of a block mask its function."""
    return {role: getattr(f, "mask_mod", f) for role, f in functions.items() if f is not None}


def _picture(mask: Any, q_len: int, kv_len: int | None, **shown: Any) -> Any:
    sizes = {} if hasattr(mask, "mask_mod") else {"q_len": q_len, "kv_len": kv_len}
    return lambda block: visualize(mask, block_size=block, **sizes, **shown)


def _element(dtype: torch.dtype | None) -> str:
    if dtype is not None and dtype not in ELEMENTS:
        raise ArgumentError(f"dtype is one of {', '.join(map(str, ELEMENTS))}, got {dtype}")
    return ELEMENTS[dtype] if dtype is not None else ""


def _dim(size: int | None) -> int:
    if size is not None and not (isinstance(size, int) and 1 <= size <= MAX_HEAD_DIM):
        raise ArgumentError(f"head_dim is a number from 1 to {MAX_HEAD_DIM}, got {size!r}")
    return size or 0
