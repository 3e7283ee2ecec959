"""Guards of engines inside torch.compile: whether an engine's functions, and what they capture, are those of the compiled graph.

Engines trace their functions themselves, where dynamo does not look, so that dynamo guards nothing of them on its own.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from types import CellType, FunctionType
from typing import Any

from attn_mlir.api.makers import dtypes_of_state
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.origin import is_opaque
from attn_mlir.frontend.watch import Watch

try:
    from torch._library.opaque_object import register_opaque_type
    from torch._opaque_base import OpaqueBase
except ImportError:  # torch before 2.11
    OpaqueBase, register_opaque_type = object, None  # type: ignore[assignment,misc]

_FREE = "def outer():\n    {0} = None\n    def read():\n        return {0}\n    return read\nread = outer()\n"
_GLOBAL = "def read():\n    return {0}\n"
_ITEMS = 64


class _Key:
    """What a guard compares; copies are the key itself."""

    __slots__ = ("content",)

    def __init__(self, content: Hashable) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and (self is other or self.content == other.content)

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, _: Any) -> "_Key":
        return self


class Watched(OpaqueBase):  # pyright: ignore[reportGeneralTypeIssues]
    """The functions of an engine, with `form`, what else shapes its program; equal ones may run the same compiled graph."""

    def __init__(self, functions: Sequence[Any], form: Hashable) -> None:
        self._functions, self._form = tuple(functions), form
        self._watch: Watch | None = None
        self._latest = _Key(None)
        self.reads = accessors(functions) if dtypes_of_state() is None else ()
        """For each captured value a function that returns it, where it is that of a variable; copies `refresh` it before they use it."""

    def now(self) -> _Key:
        """A key that differs where the engine would trace its functions again, or `reads` are those of other variables."""
        if self._watch is not None and self._watch.holds(self._functions):
            return self._latest
        scan = Scan(self._functions)
        current = len(self.reads) == len(scan.leaves) and all(
            read is None or read() is leaf for read, leaf in zip(self.reads, scan.leaves, strict=True)
        )
        self._latest = _Key((self._form, tuple(scan.key), current))
        self._watch = scan.watch if current else None
        return self._latest

    def refresh(self) -> tuple[Callable[[], Any] | None, ...]:
        """The `reads` of the variables as they are now."""
        if not self.now().content[2]:  # type: ignore[index]
            self.reads = accessors(self._functions)
            self._watch = None
        return self.reads


if register_opaque_type is not None:
    register_opaque_type(Watched, typ="reference", guard_fn=lambda watched: [watched.now()])


def guarded(watched: Watched) -> None:
    """Inside torch.compile: has torch compile again where `watched` changes. Raises UnsupportedError where torch has no such guards."""
    if register_opaque_type is None:
        raise UnsupportedError("engines inside torch.compile need torch 2.11 or newer: call the engine outside, or use attention(...)")
    type(watched)  # dynamo guards what is looked at


def accessors(functions: Sequence[Any]) -> tuple[Callable[[], Any] | None, ...]:
    """For each leaf of `Scan(functions)`, a function that returns its current value; None where it is no plain variable.

    Inside torch.compile, what they return is an input of the graph.
    """
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
