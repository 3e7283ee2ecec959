"""Whether torch.compile takes attention into its graphs: where torch lacks what that needs, calls stay outside of graphs."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._higher_order_ops import wrap

_Function = TypeVar("_Function", bound=Callable[..., Any])


def constant_in_graphs(function: _Function) -> _Function:
    """`torch.compiler.assume_constant_result`, which imports dynamo, and with it takes two thirds of the time of an import."""
    setattr(function, "_dynamo_marked_constant", True)
    return function


def graph_part(function: _Function) -> _Function:
    """The function itself; for a torch without `dynamo_bypassing_wrapper` one at which graphs break, so that it runs as it does eagerly.

    With fullgraph=True torch's error then names the function.
    """
    return function if hasattr(wrap, "dynamo_bypassing_wrapper") else torch._disable_dynamo(function)  # type: ignore[attr-defined]
