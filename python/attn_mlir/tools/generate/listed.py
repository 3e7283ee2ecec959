"""The instances that there are for a target without a file of the user's, and which of a list filters choose."""

import fnmatch
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from attn_mlir.errors import ArgumentError
from attn_mlir.passes.options import suggest
from attn_mlir.tools.generate.instance import Instance
from attn_mlir.tools.python_files import found

_DTYPES = {"cpu": ("fp32",)}
_MASKS = ("0", "t", "b", "t:1,1", "b:1,1", "b:1,1,1")
_OTHER_ROWS = ("softmax1", "sigmoid", "relu", "relu_squared", "relu_normalized")


def usual(target: str) -> list[Instance]:
    """The instances for a target."""
    made: list[Instance] = []
    for dtype in _DTYPES.get(target, ("fp16", "bf16")):
        for head_dim in (32, 64, 128):
            made += _forward(dtype, head_dim)
            made += _backward(dtype, head_dim, target)
    return made


def _forward(dtype: str, head_dim: int) -> Iterator[Instance]:
    for layout, mask, dropout, lse in itertools.product(("bhsd", "bshd"), _MASKS, (False, True), (False, True)):
        common: dict[str, Any] = {
            "dtype": dtype, "head_dim": head_dim, "layout": layout, "mask": mask, "dropout": dropout, "lse": lse,
        }  # fmt: skip
        yield Instance(**common)
        if layout == "bhsd":
            yield Instance(soft_cap=True, **common)
            yield from [Instance(bias=bias, **common) for bias in ("e:0", "e:1", "e:2", "a:0")]
    for row, mask in itertools.product(_OTHER_ROWS, ("0", "t", "b")):
        yield Instance(dtype=dtype, head_dim=head_dim, row=row, mask=mask)


def _backward(dtype: str, head_dim: int, target: str) -> Iterator[Instance]:
    order = (False,) if target == "cpu" else (False, True)  # on a CPU gradients have the same bits in every run
    for layout, mask, dropout, deterministic in itertools.product(("bhsd", "bshd"), _MASKS, (False, True), order):
        common: dict[str, Any] = {
            "direction": "bwd", "dtype": dtype, "head_dim": head_dim, "layout": layout, "mask": mask, "dropout": dropout,
            "deterministic": deterministic,
        }  # fmt: skip
        yield Instance(**common)
        if layout == "bhsd":
            yield Instance(soft_cap=True, **common)
            yield Instance(bias="a:0", **common)
            yield from [Instance(bias=bias, bias_gradient=gradient, **common) for bias in ("e:0", "e:1") for gradient in (False, True)]
    for row, mask in itertools.product(_OTHER_ROWS, ("0", "t", "b")):
        yield Instance("bwd", dtype, head_dim, row=row, mask=mask)


def instances_of(place: str, target: str) -> list[Instance]:
    """Those of a user's file, FILE.py or FILE.py:NAME, or the usual ones. Raises ArgumentError."""
    if not place:
        return usual(target)
    given = found(f"{place}:instances" if place.endswith(".py") else place)
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(each, Instance) for each in given):
        raise ArgumentError(f"{place} has no list of instances: instances = [attn_mlir.tools.generate.Instance(...), ...]; got {given!r}")
    names = [each.name for each in given]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArgumentError(f"{place} has two instances with the same traits, {twice[0]}: leave one out, or give them a variant")
    return list(given)


def chosen(instances: Sequence[Instance], filters: Sequence[str]) -> list[Instance]:
    """Those whose names match one of the patterns, all where there are none. Raises ArgumentError for a pattern that matches none."""
    patterns = [pattern.strip() for each in filters for pattern in each.split(",")]
    names = [each.name for each in instances]
    kept: set[str] = set()
    for pattern in patterns:
        matching = fnmatch.filter(names, pattern)
        if not matching:
            inside = fnmatch.filter(names, f"*{pattern}*") if pattern else []
            hint = f"; '*{pattern}*' matches {len(inside)}" if inside else suggest(pattern, names)
            raise ArgumentError(f"the filter '{pattern}' matches none of {len(names)} instances{hint}; --list shows their names")
        kept.update(matching)
    return [each for each in instances if each.name in kept or not patterns]
