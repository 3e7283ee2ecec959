"""What the graph of the user's functions must not do: draw random numbers, or change tensors in place."""

import operator
import re
from collections.abc import Mapping
from typing import Any

from torch.fx import Graph, Node

from attn_mlir.errors import TraceError, UnsupportedError
from attn_mlir.frontend import randomness, where
from attn_mlir.frontend.report import failure

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_OPERATORS = {
    "iadd": operator.add, "isub": operator.sub, "imul": operator.mul, "itruediv": operator.truediv, "ifloordiv": operator.floordiv,
    "imod": operator.mod, "ipow": operator.pow, "iand": operator.and_, "ior": operator.or_, "ixor": operator.xor,
    "ilshift": operator.lshift, "irshift": operator.rshift,
}  # fmt: skip
_NEW = ("clone", "zeros", "ones", "full", "tensor", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "arange")
_VIEWS = frozenset(
    {
        "getitem", "view", "reshape", "T", "mT", "transpose", "permute", "unsqueeze", "squeeze", "expand", "detach", "flatten", "narrow",
        "select", "diagonal", "unbind", "split", "chunk", "view_as", "expand_as", "contiguous", "to", "float", "double", "getattr", "data",
        "unflatten", "movedim", "swapaxes", "t", "ravel", "real",
    }
)  # fmt: skip
_ADVICE = "captured tensors are read only; compute a new value instead, e.g. with torch.where"


def check_graph(graph: Graph | None) -> None:
    """Raises TraceError for what would be wrong in a graph that is read and not run, UnsupportedError where torch could make no graph."""
    if not isinstance(graph, Graph):
        raise UnsupportedError(
            "torch.compile cannot trace a function of this attention (torch.compile(fullgraph=True) says what in it): read numbers out of "
            "tensors before the call, or wrap the call with torch.compiler.disable"
        )
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op == "placeholder" and node.name.startswith("random_value") and _is_float(node):
            raise UnsupportedError(
                "a function reads a float that Python's random drew inside torch.compile, which torch declares with a wrong dtype: "
                "draw it before the compiled function, or with torch.rand before the call"
            )
        if node.op not in ("call_function", "call_method"):
            continue
        name = _name(node)
        if randomness.draws(name, node.args, node.kwargs):
            raise _failure(node, *randomness.of_torch(name))
        if _changes(node, name, place):
            raise _failure(node, "changes a tensor in place", _ADVICE)


def _is_float(node: Node) -> bool:
    return bool(getattr(node.meta.get("example_value"), "is_floating_point", bool)())


def _name(node: Node) -> str:
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return name.removesuffix(".default")


def function_of(node: Node) -> Any:
    """What a node calls; for `x += y`, which `check_graph` allowed, the operator that makes a new value."""
    return _OPERATORS.get(_name(node), node.target)


def _changes(node: Node, name: str, place: Mapping[Node, int]) -> bool:
    """Whether a node changes a tensor that others read."""
    if node.kwargs.get("out") is not None or name == "setitem":
        return True
    of_python = getattr(node.target, "__module__", None) == "_operator"  # whose `and_` changes nothing
    in_place = name.endswith("_") and not name.endswith("__") and not of_python
    changed = node.args[0] if node.args else None
    if name in _OPERATORS and isinstance(changed, Node):
        others = [user for user in changed.users if user is not node]
        views = any(_name(other) in _VIEWS for other in (changed, *others))
        return changed.op == "placeholder" or views or any(place[other] > place[node] for other in others)
    if not (in_place or node.kwargs.get("inplace") is True):
        return False
    return not (isinstance(changed, Node) and len(changed.users) == 1 and changed.op != "placeholder" and _name(changed) in _NEW)


def _failure(node: Node, problem: str, advice: str) -> TraceError:
    found = [match for match in _FRAME.findall(node.stack_trace or "") if not where.is_ours(match[0])]
    if not found:
        return failure("a function of the attention", problem, advice)
    file, line, function = found[-1]
    return failure(f"`{function}`", problem, advice, where.Where(file, function, int(line), 1, int(line), 0, None))
