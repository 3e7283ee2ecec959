"""Functions that read what other functions capture; inside torch.compile, what they return is an input of the graph."""

from collections.abc import Callable, Iterator, Sequence
from types import CellType, FunctionType
from typing import Any

from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.origin import is_opaque

_FREE = "def outer():\n    {0} = None\n    def read():\n        return {0}\n    return read\nread = outer()\n"
_GLOBAL = "def read():\n    return {0}\n"
_ITEMS = 64


def accessors(functions: Sequence[Any]) -> tuple[Callable[[], Any] | None, ...]:
    """For each leaf of `Scan(functions)`, a function that returns its current value; None where it is no plain variable."""
    scan = Scan(functions, detailed=True)
    found: list[Callable[[], Any] | None] = [None] * len(scan.leaves)
    for function in _all_functions(functions):
        for name, content, read in _variables(function):
            leaf = scan.leaf_of.get((id(function), name))
            if leaf is None:
                leaf = next((i for i, value in enumerate(scan.leaves) if value is content and scan.names[i] == name), None)
            if leaf is not None and found[leaf] is None:
                found[leaf] = read
    return tuple(found)


def _all_functions(given: Sequence[Any]) -> list[FunctionType]:
    """The functions, and those that they capture, alone or in a tuple or list, as `and_masks(f, g)` does."""
    found: dict[int, FunctionType] = {}
    waiting = list(given)
    while waiting:
        x = waiting.pop(0)
        if isinstance(x, (tuple, list)) and len(x) <= _ITEMS:
            waiting += [item for item in x if isinstance(item, FunctionType)]
        elif isinstance(x, FunctionType) and id(x) not in found:
            found[id(x)] = x
            waiting += [content for _, content, _ in _variables(x) if isinstance(content, (FunctionType, tuple, list))]
    return list(found.values())


def _variables(function: FunctionType) -> Iterator[tuple[str, Any, Callable[[], Any]]]:
    """The variables of a function that are not its own: name, content, and a function that reads it."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents, _read(_FREE, name, function.__globals__, (cell,))
        except ValueError:  # not assigned yet
            continue
    for name in () if is_opaque(function) else function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name], _read(_GLOBAL, name, function.__globals__, None)


def _read(template: str, name: str, scope: dict[str, Any], closure: tuple[CellType] | None) -> Callable[[], Any]:
    made: dict[str, Any] = {}
    exec(compile(template.format(name), __file__, "exec"), made)
    return FunctionType(made["read"].__code__, scope, f"read_{name}", None, closure)
