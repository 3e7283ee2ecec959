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
from attn_mlir.api.hoist import attribute
from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.frontend import partners, scope, sizes
from attn_mlir.frontend.scope import Captured
from attn_mlir.frontend.values import wrap
from attn_mlir.runtime import ops

__all__ = ["GraphPiece", "element", "is_symbol", "stand_in", "symbol"]

_SIZES = ("kv_len", "q_len", "num_heads")
_LATEST = threading.local()


@torch.library.custom_op("attn_mlir::symbol", mutates_args=())
def symbol(name: str, dtype: torch.dtype, device: torch.device | None = None, size: int = 1) -> Tensor:
    """Stands for an argument of one of the user's functions: "piece.argument"; on `device`, as what the functions capture.

    It has one element in one dimension, as an index without dimensions would be read; the scores of a row, one for each key.
    Without a device, as for the sizes that functions ask for themselves, that of the latest symbol is meant.
    """
    return torch.zeros(size, dtype=dtype, device=_device(device))


@symbol.register_fake
def _(name: str, dtype: torch.dtype, device: torch.device | None = None, size: int = 1) -> Tensor:
    return torch.zeros(size, dtype=dtype, device=_device(device))


@torch.library.custom_op("attn_mlir::element", mutates_args=())
def element(name: str, dtype: torch.dtype, like: list[Tensor], size: int = 1) -> Tensor:
    """Stands for a score, or an element of q, k or v, as `symbol` does. It has a gradient where those of `like` have one.

    Otherwise dynamo would take a torch.autograd.Function of it for its forward alone.
    """
    return torch.zeros(size, dtype=dtype, device=_device(like[0].device))


@element.register_fake
def _(name: str, dtype: torch.dtype, like: list[Tensor], size: int = 1) -> Tensor:
    return torch.zeros(size, dtype=dtype, device=_device(like[0].device))


@torch.library.custom_op("attn_mlir::partner", mutates_args=())
def _partner(x: Tensor, interleaved: bool, channels: int, turned: bool) -> Tensor:
    """Stands for `partners.partner`, or if `turned` `partners.rotate_half`, of an element; `channels` 0: all are paired."""
    return torch.zeros_like(x)


@_partner.register_fake
def _(x: Tensor, interleaved: bool, channels: int, turned: bool) -> Tensor:
    return torch.zeros_like(x)


def _device(given: torch.device | None) -> torch.device:
    """The given device, which is kept for what comes without one."""
    if given is not None:
        _LATEST.device = given
    return getattr(_LATEST, "device", torch.device("cpu"))


element.register_autograd(ops.no_mixed_derivative)


def is_symbol(node: torch.fx.Node) -> bool:
    """Whether a node stands for an argument of a function."""
    return node.target in (
        symbol._opoverload, torch.ops.attn_mlir.symbol, element._opoverload, torch.ops.attn_mlir.element,
    )  # fmt: skip


def stand_in(value: Any) -> Any:
    """A tensor without data for a tensor or a symbolic float of the graph; integers stay."""
    if isinstance(value, torch.SymFloat):
        return torch.empty((), dtype=torch.float64, device="meta")
    if not isinstance(value, Tensor):
        return value
    return torch.empty([s.node.hint if isinstance(s, torch.SymInt) else s for s in value.shape], dtype=value.dtype, device="meta")


class GraphPiece:
    """One of the user's functions: the nodes of the graph that it returned."""

    def __init__(self, wanted: Sequence[torch.fx.Node], states: Sequence[str], stand_ins: dict[torch.fx.Node, Any]) -> None:
        self._wanted = wanted
        self._states = states
        self._stand_ins = stand_ins

    def scan_key(self) -> int:
        """Tells `Scan` not to look inside."""
        return id(self)

    def function(self, *parameters: str) -> Callable[..., Any]:
        """The function, with the parameters that it has in its piece."""
        return _Positional(self, parameters)

    def run(self, **arguments: Any) -> Any:
        """Computes the nodes on traced values."""
        values: dict[torch.fx.Node, Any] = dict(self._stand_ins)
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
        elif node.target in (_partner._opoverload, torch.ops.attn_mlir.partner):
            x, interleaved, channels, turned = args
            made = partners.of_value(x, interleaved, channels or None, turned)
        else:
            made = target(*args, **kwargs)
        values[node] = made
        return made


class _Positional:
    """A piece as a function of parameters with these names."""

    def __init__(self, piece: GraphPiece, names: Sequence[str]) -> None:
        self._piece, self._names = piece, tuple(names)
        self.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in names])

    def scan_key(self) -> int:
        """Tells `Scan` not to look inside."""
        return id(self)

    def __call__(self, *arguments: Any) -> Any:
        return self._piece.run(**dict(zip(self._names, arguments, strict=True)))
