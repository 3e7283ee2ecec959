"""Calls: a traced attention and the values that it is to be computed of. The functions of `api` make them, `dispatch` runs them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.given import Inputs
from attn_mlir.runtime.orders import all_heads_first, input_order


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """What the shapes of q, k and v say."""

    inputs: Inputs
    device: torch.device
    sizes: dict[str, int]
    """B, Hq, Hkv, Sq, Skv, D and Dv; of a linear attention also H, the heads of v."""
    device_type: str
    is_empty: bool
    """Whether there is nothing to compute: no output, or no key for any row."""
    layout: str = "bhsd"
    """That of q, k, v and o, see `runtime.orders`."""


class Call(NamedTuple):
    """One call, whose arguments were checked; its derivatives are by what requires a gradient or has a tangent when it is run."""

    entry: Entry
    """The traced attention."""
    problem: Problem
    values: Sequence[Any]
    """q, k and v in the order of the layout, and what the functions capture."""
    layout: str
    """The order of q, k, v and their gradients, and that of o."""
    device: str
    """What computes it: the type of the tensors' device, or an emulation."""
    deterministic: bool = False

    def heads_first(self) -> Sequence[Any]:
        """The values with q, k and v as [B, H, S, D]."""
        return all_heads_first(self.values, input_order(self.layout), 3)
