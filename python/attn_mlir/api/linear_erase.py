"""What a linear attention erases: the inputs of the delta rule, and their checks."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from attn_mlir.api.inputs import check_device, check_dtype
from attn_mlir.errors import ArgumentError

DeltaForm = tuple[str, bool, bool, str]
"""What erase is like, whether there are an erase_key and a removed_key, and where q reads."""
NO_DELTA: DeltaForm = ("none", False, False, "after")
_FORMS = {1: ("head", "[H]"), 2: ("head channel", "[H, K]"), 3: ("step", "[B, H, T]"), 4: ("step channel", "[B, H, T, K]")}


class Delta(NamedTuple):
    """The tensors of a delta rule, in [B, H, T, D] whatever the layout, and its form."""

    erase: torch.Tensor | None = None
    erase_key: torch.Tensor | None = None
    removed_key: torch.Tensor | None = None
    form: DeltaForm = NO_DELTA

    @property
    def inputs(self) -> dict[str, torch.Tensor | None]:
        """The tensors by name."""
        return {"erase": self.erase, "erase_key": self.erase_key, "removed_key": self.removed_key}


_NOTHING = Delta()


class Erasing(NamedTuple):
    """What a caller says about erasing, as it was given."""

    erase: Any = None
    mod: Callable[..., Any] | None = None
    erase_key: Any = None
    removed_key: Any = None
    read_before: bool = False

    @property
    def given(self) -> bool:
        """Whether something is erased."""
        return self.erase is not None or self.mod is not None

    def tensors(self) -> tuple[Any, Any, Any]:
        return self.erase, self.erase_key, self.removed_key


NOTHING_ERASED = Erasing()


def check_delta(erasing: Erasing, q: torch.Tensor, sizes: dict[str, int], layout: str, score: torch.dtype) -> Delta:
    """The inputs of a delta rule. Raises ArgumentError naming the argument that is wrong."""
    if not erasing.given:
        for name, there in (("erase_key", erasing.erase_key is not None), ("removed_key", erasing.removed_key is not None)):
            if there:
                raise ArgumentError(f"{name} says what is erased, but nothing is: pass erase=, the share of it that goes, or erase_mod=")
        if erasing.read_before:
            raise ArgumentError("read_before_update goes with erase= or erase_mod=: without them pass q one position later")
        return _NOTHING
    keys = {name: _check_key(name, getattr(erasing, name), q, sizes, layout) for name in ("erase_key", "removed_key")}
    erase, kind = _check_share(erasing.erase, q, sizes, layout, score)
    output = "decayed" if erasing.read_before else "after"
    own, removed = keys["erase_key"], keys["removed_key"]
    return Delta(erase, own, removed, (kind, own is not None, removed is not None, output))


def _check_key(name: str, key: Any, q: torch.Tensor, sizes: dict[str, int], layout: str) -> torch.Tensor | None:
    if key is None:
        return None
    if not isinstance(key, torch.Tensor) or key.dim() != 4 or key.is_nested:
        raise ArgumentError(f"{name} must be a tensor like k, of 4 dimensions, got {_described(key)}")
    check_dtype(name, key, q)
    check_device(name, key, q)
    key = key.transpose(1, 2) if layout == "bshd" else key
    b, heads, length, dim = key.shape
    if (b, length, dim) != (sizes["B"], sizes["Sq"], sizes["D"]) or heads == 0 or sizes["H"] % heads:
        raise ArgumentError(
            f"{name} is [B, Hk, T, K] = {list(key.shape)}, but here B, T and K are {sizes['B']}, {sizes['Sq']} and {sizes['D']}, "
            f"and its heads must divide the {sizes['H']} of v"
        )
    return key


def _check_share(erase: Any, q: torch.Tensor, sizes: dict[str, int], layout: str, score: torch.dtype) -> tuple[torch.Tensor | None, str]:
    """The share that is erased, and what it is like."""
    if erase is None:
        return None, "none"
    if not isinstance(erase, torch.Tensor) or erase.is_nested or erase.layout != torch.strided:
        raise ArgumentError(f"erase must be a torch.Tensor or None, got {_described(erase)}: a number is torch.full((H,), x)")
    check_device("erase", erase, q)
    if not erase.is_floating_point():
        raise ArgumentError(f"erase has dtype {erase.dtype}: use float32")
    if erase.dim() not in _FORMS:
        raise ArgumentError(f"erase must be [H], [H, K], [B, H, T] or [B, H, T, K], got shape {list(erase.shape)}")
    form, meant = _FORMS[erase.dim()]
    per_step = (sizes["B"], sizes["H"], sizes["Sq"], sizes["D"])
    wanted = (per_step[1], per_step[3])[: erase.dim()] if erase.dim() < 3 else per_step[: erase.dim()]
    found = erase.transpose(1, 2) if layout == "bshd" and erase.dim() >= 3 else erase
    if tuple(found.shape) != wanted:
        raise ArgumentError(
            f"erase has shape {list(erase.shape)}, but {meant} is {list(wanted)} in this call (H: heads of v, K: columns of k"
            f"{'; with layout bshd, positions come before heads' if layout == 'bshd' else ''})"
        )
    return found.to(score), form


def _described(value: Any) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
