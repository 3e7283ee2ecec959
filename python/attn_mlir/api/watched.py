"""Guards of engines inside torch.compile: whether an engine's functions, and what they capture, are those of the compiled graph.

Engines trace their functions themselves, where dynamo does not look, so that dynamo guards nothing of them on its own.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from attn_mlir.api.accessors import accessors
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.watch import Watch

try:
    from torch._library.opaque_object import register_opaque_type
    from torch._opaque_base import OpaqueBase
except ImportError:  # torch before 2.11
    OpaqueBase, register_opaque_type = object, None  # type: ignore[assignment,misc]


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
        self.reads = accessors(functions)
        """For each captured value a function that returns it, where it is that of a variable."""

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
