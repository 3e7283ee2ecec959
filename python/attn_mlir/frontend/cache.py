"""Finds the trace of a call again: by the functions' code and what shapes it, never by the captured values."""

import dataclasses
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from attn_mlir import forks
from attn_mlir.frontend.captures import Scan, as_tensor
from attn_mlir.frontend.node import Source
from attn_mlir.frontend.program import Traced

_LIMIT = 512


@dataclasses.dataclass(eq=False, slots=True)
class Entry:
    """A traced program, and, once it ran, what was registered of it (see `runtime.programs`)."""

    traced: Traced
    programs: list[Any] = dataclasses.field(default_factory=lambda: [None, None])
    """The second one is deterministic."""

    def holds(self, scan: Scan) -> bool:
        """Whether what the trace was specialised on still has the same value."""
        return all(_current(scan, source) == value for source, value in self.traced.specialised)

    def captures(self, scan: Scan, scale: float) -> list[Any]:
        """The current values of the program's further arguments."""
        values = []
        for captured in self.traced.captures:
            match captured.source[0]:
                case "leaf":
                    value = scan.leaves[captured.source[1]]
                    values.append(
                        as_tensor(value) if captured.kind == "tensor" else float(value) if captured.kind == "float" else int(value)
                    )
                case "scale":
                    values.append(scale)
                case _:
                    values.append(captured.constant)
        return values


class TraceCache:
    """The most recently used traces."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, list[Entry]] = OrderedDict()
        self._latest: dict[Hashable, tuple[list[weakref.ref[Any]], Entry, Scan]] = {}
        self._lock = forks.lock()

    def find(self, functions: Sequence[Any], form: Hashable, trace: Callable[[], Traced]) -> tuple[Entry, Scan]:
        """The entry for `functions` traced in the form `form` (everything else that shapes the trace), traced now if new."""
        same = (form, *map(id, functions))
        latest = self._latest.get(same)
        if latest is not None and latest[2].watch.holds(functions):  # type: ignore[union-attr]
            return latest[1:]
        entry, scan = self._scan(functions, form, trace)
        if scan.reusable and scan.watch is not None and not entry.traced.specialised:
            self._remember(same, functions, entry, scan)
        return entry, scan

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

    def _scan(self, functions: Sequence[Any], form: Hashable, trace: Callable[[], Traced]) -> tuple[Entry, Scan]:
        scan = Scan(functions)
        key = (form, tuple(scan.key)) if scan.reusable else None
        entries = self._entries.get(key, ()) if key is not None else ()
        for entry in entries:
            if not entry.traced.specialised or entry.holds(scan):
                return entry, scan
        entry = Entry(trace())
        if key is not None and entry.traced.reusable:
            with self._lock:
                self._entries.setdefault(key, []).append(entry)
                self._entries.move_to_end(key)
                del self._entries[key][:-_LIMIT]
                while len(self._entries) > _LIMIT:
                    self._entries.popitem(last=False)
        return entry, scan


def _current(scan: Scan, source: Source) -> Any:
    if source[0] == "leaf":
        return scan.leaves[source[1]]
    _, tensor, dim = source
    return scan.leaves[tensor[1]].shape[dim]
