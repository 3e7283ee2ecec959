"""Finds the trace of a call again: by the functions' code and what shapes it, never by the captured values."""

import dataclasses
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir import forks
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.program import Traced
from attn_mlir.frontend.tape import Found, shared

_LIMIT = 512
_VALUES = 16
"""Traces of one key that are kept, for different values of what they were specialised on."""


@dataclasses.dataclass(eq=False, slots=True)
class Entry:
    """A traced program, and, once it ran, what was registered of it (see `runtime.programs`)."""

    traced: Traced
    programs: list[Any] = dataclasses.field(default_factory=lambda: [None, None])
    """The second one is deterministic."""
    plain: bool = True
    """Whether the program holds whatever is captured, and takes it as it is."""

    def __post_init__(self) -> None:
        self.plain = self.traced.is_plain

    def found(self, scan: Scan) -> "Scan | Found | None":
        """What a call with the leaves of `scan` captures; None where what the trace was specialised on has another value."""
        if self.plain:
            return scan
        tape = self.traced.tape
        found = Found(scan.leaves, {}) if tape is None else tape.replay(scan.leaves)
        if found is None:
            return None
        if not all(found.value(source) == value for source, value in self.traced.specialised):
            return None
        return found if all(decision.holds(found.value) for decision in self.traced.decisions) else None

    def captures(self, scan: "Scan | Found", scale: float, given: Mapping[str, Any] = MappingProxyType({})) -> list[Any]:
        """The current values of the program's further arguments; `given`: those of dropout, products, sequences, lists, positions."""
        if self.traced.tape is not None and not isinstance(scan, Found):
            scan = self.traced.tape.first(scan.leaves)
        values = []
        for captured in self.traced.captures:
            match captured.source[0]:
                case "leaf":
                    values.append(captured.kind.read(scan.leaves[captured.source[1]]))
                case "scale":
                    values.append(scale)
                case "dropout" | "product" | "sequences" | "position" | "lists":
                    values.append(given[captured.source[1]])
                case "computed":
                    values.append(shared(scan.value(captured.source)))  # type: ignore[union-attr]
                case _:
                    values.append(captured.constant)
        return values


class TraceCache:
    """The most recently used traces."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, list[Entry]] = OrderedDict()
        self._latest: dict[Hashable, tuple[list[weakref.ref[Any]], Entry, Scan]] = {}
        self._lock = forks.lock()

    def find(self, functions: Sequence[Any], form: Hashable, trace: Callable[[], Traced]) -> tuple[Entry, Any]:
        """The entry for `functions` traced in the form `form` (everything else that shapes the trace), traced now if new.

        With it what `Entry.captures` reads the values of this call from.
        """
        same = (form, *map(id, functions))
        latest = self._latest.get(same)
        if latest is not None and latest[2].watch.holds(functions):  # type: ignore[union-attr]
            if latest[1].plain:
                return latest[1:]
            found = latest[1].found(latest[2])
            if found is not None:
                return latest[1], found
        entry, scan, found = self._scan(functions, form, trace)
        if scan.reusable and entry.traced.reusable and scan.watch is not None:
            self._remember(same, functions, entry, scan)
        return entry, found

    def _remember(self, same: Hashable, functions: Sequence[Any], entry: Entry, scan: Scan) -> None:
        """Keeps what the same functions find again, for as long as they live."""

        def forget(_: Any, table: dict[Hashable, Any] = self._latest) -> None:
            table.pop(same, None)

        try:
            alive = [weakref.ref(function, forget) for function in functions if function is not None]
        except TypeError:  # a builtin function
            return
        if len(self._latest) >= _LIMIT:
            self._latest.clear()
        self._latest[same] = (alive, entry, scan.let_go())

    def _scan(self, functions: Sequence[Any], form: Hashable, trace: Callable[[], Traced]) -> tuple[Entry, Scan, Any]:
        scan = Scan(functions)
        key = (form, tuple(scan.key)) if scan.reusable else None
        entries = self._entries.get(key, ()) if key is not None else ()
        for entry in reversed(entries):
            found = entry.found(scan)
            if found is not None:
                return entry, scan, found
        entry = Entry(trace())
        found = scan if entry.traced.tape is None else entry.traced.tape.first(scan.leaves)
        if key is not None and entry.traced.reusable:
            with self._lock:
                self._entries.setdefault(key, []).append(entry)
                self._entries.move_to_end(key)
                del self._entries[key][:-_VALUES]
                while len(self._entries) > _LIMIT:
                    self._entries.popitem(last=False)
        return entry, scan, found
