"""A call that was traced once and is computed of other tensors later, in parts or by a backward pass: no function is traced again.

Functions may capture something else by then, and hooks of autograd may give copies of what was saved: values are known by their position.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.runtime.call import Call, Problem

Tensor = torch.Tensor
Dense = tuple[Call, Mapping[str, Any], Callable[[Tensor], Mapping[str, Any]]]
"""A call by a table of all keys, traced with what stands for values that are made of the lists, and what makes these."""


@dataclass(frozen=True)
class KeptCall:
    """A call without its tensors."""

    call: Call
    """Its values are captured numbers, in their places."""
    places: tuple[str | int | None, ...]
    """Of each value after q, k and v: its name where each call has its own, or its number among captured tensors; None: a number."""

    def of(self, qkv: Sequence[Tensor], captured: Sequence[Tensor], own: Mapping[str, Any], problem: Problem | None = None) -> Call:
        """The call of these tensors; `own` are the values that have names, `problem` what other shapes say."""
        values: list[Any] = list(qkv)
        for value, place in zip(self.call.values[3:], self.places, strict=True):
            values.append(value if place is None else own[place] if isinstance(place, str) else captured[place])
        return self.call._replace(values=tuple(values), problem=problem or self.call.problem)


def keep_call(call: Call, own: Mapping[str, Any], captured: list[Tensor]) -> KeptCall:
    """The call to keep; tensors that it captures are added to `captured`, each once. `own`: values that are others in the next call."""
    names, numbers = {id(value): name for name, value in own.items()}, {id(x): number for number, x in enumerate(captured)}
    values: list[Any] = [None, None, None]
    places: list[str | int | None] = []
    for value in call.values[3:]:
        place: str | int | None = names.get(id(value))
        if place is None and isinstance(value, Tensor):
            place = numbers.setdefault(id(value), len(captured))
            if place == len(captured):
                # No version tells of changes of numpy's memory.
                captured.append(value.clone() if getattr(value, "shares_numpy", False) else value)
        values.append(value if place is None else None)
        places.append(place)
    return KeptCall(call._replace(values=tuple(values)), tuple(places))
