"""What stands for arguments of the user's functions in a graph of torch.compile, and the functions as they are read from it.

dynamo traced the functions on tensors of one element (see `api.compiled`). The graph is never run: its nodes are computed on traced values.
"""

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.api.graph_checks import function_of
from attn_mlir.api.graph_modes import detached, without_gradients
from attn_mlir.api.hoist import attribute
from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.frontend import partners, scope, sizes
from attn_mlir.frontend.scope import Captured
from attn_mlir.frontend.values import wrap
from attn_mlir.runtime import ops

_SIZES = ("kv_len", "q_len", "num_heads")
_LATEST = threading.local()


def _device(given: torch.device | None) -> torch.device:
    """The given device, which is kept for what comes without one."""
    if given is not None:
        _LATEST.device = given
    return getattr(_LATEST, "device", torch.device("cpu"))


def _stand_in(name: str, made: Callable[..., Tensor]) -> Any:
    """The operator of this name, which makes the same of tensors with and without data."""
    operator = torch.library.custom_op(f"attn_mlir::{name}", made, mutates_args=())
    operator.register_fake(made)
    return operator


def _symbol(name: str, dtype: torch.dtype, device: torch.device | None = None, size: int | None = None) -> Tensor:
    return torch.zeros(() if size is None else (size,), dtype=dtype, device=_device(device))


def _element(name: str, dtype: torch.dtype, like: list[Tensor], size: int | None = None) -> Tensor:
    return torch.zeros(() if size is None else (size,), dtype=dtype, device=_device(like[0].device))


def _zeros_like(x: Tensor, interleaved: bool, channels: int, turned: bool) -> Tensor:
    return torch.zeros_like(x)


symbol = _stand_in("symbol", _symbol)
"""Stands for an argument of one of the user's functions: "piece.argument"; on `device`, as what the functions capture.

It has no dimensions, as outside of torch.compile, so that lengths and ranks of what is read with it are those (see `api.graph_indices`);
the scores of a row have one element for each key.
Without a device, as for the sizes that functions ask for themselves, that of the latest symbol is meant.
"""
element = _stand_in("element", _element)
"""Stands for a score, or an element of q, k or v, as `symbol` does. It has a gradient where those of `like` have one.

Otherwise dynamo would take a torch.autograd.Function of it for its forward alone.
"""
element.register_autograd(ops.no_mixed_derivative)
_partner = _stand_in("partner", _zeros_like)
"""Stands for `partners.partner`, or if `turned` `partners.rotate_half`, of an element; `channels` 0: all are paired."""
_NODES = {operator: (operator._opoverload, operator._opoverload.overloadpacket) for operator in (symbol, element, _partner)}
"""What operators are called in graphs."""


def is_symbol(node: torch.fx.Node) -> bool:
    """Whether a node stands for an argument of a function."""
    return node.target in (*_NODES[symbol], *_NODES[element])


def stand_in(value: Any) -> Any:
    """A tensor without data for a tensor or a symbolic float of the graph; integers stay."""
    if isinstance(value, torch.SymFloat):
        return torch.empty((), dtype=torch.float64, device="meta")
    if not isinstance(value, Tensor):
        return value
    return torch.empty([s.node.hint if isinstance(s, torch.SymInt) else s for s in value.shape], dtype=value.dtype, device="meta")


class GraphPiece:
    """One of the user's functions: the nodes of the graph that it returned, as a function of the parameters that it has there."""

    def __init__(
        self, wanted: Sequence[torch.fx.Node], states: Sequence[str], stand_ins: dict[torch.fx.Node, Any], names: Sequence[str]
    ) -> None:
        self._wanted, self._states, self._stand_ins, self._names = wanted, states, stand_ins, tuple(names)
        self._constant = without_gradients(wanted[0].graph)
        self.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names])

    def scan_key(self) -> int:
        """Tells `Scan` not to look inside."""
        return id(self)

    def __call__(self, *given: Any) -> Any:
        """Computes the nodes on traced values."""
        values, arguments = dict(self._stand_ins), dict(zip(self._names, given, strict=True))
        results = [self._value(node, values, arguments) for node in self._wanted]
        if self._states:
            weights = len(results) - len(self._states)
            return *results[:weights], dict(zip(self._states, results[weights:], strict=True))
        return results[0] if len(results) == 1 else tuple(results)

    def _value(self, node: torch.fx.Node, values: dict[torch.fx.Node, Any], arguments: dict[str, Any]) -> Any:
        if node in values:
            known = values[node]
            if isinstance(known, torch.SymInt):  # an argument of the program, so that another number needs no other program
                captured = Captured(("graph", node), str(node), CaptureKind.INT, constant=node)
                known = values[node] = wrap(scope.current().capture(captured, known.node.hint))
            return known
        for operand in node.all_input_nodes:
            self._value(operand, values, arguments)
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        target: Any = function_of(node)
        if node.op == "call_method":
            made = getattr(args[0], str(node.target))(*args[1:], **kwargs)
        elif node.op == "get_attr":
            made = attribute(node)
        elif is_symbol(node):
            name = args[0].rpartition(".")[2]
            made = getattr(sizes, name)() if name in _SIZES else arguments[name]
        elif node.target in _NODES[_partner]:
            x, interleaved, channels, turned = args
            made = partners.of_value(x, interleaved, channels or None, turned)
        else:
            made = target(*args, **kwargs)
        constant = node in self._constant and scope.current().scope.kind != "mask"  # type: ignore[union-attr]
        values[node] = made = detached(made) if constant and not is_symbol(node) else made
        return made
