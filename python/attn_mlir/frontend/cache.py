"""Finds the trace of a call again: by the functions' code and what shapes it, never by the captured values."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from attn_mlir import forks
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.entry import Entry
from attn_mlir.frontend.program import Traced

__all__ = ["Entry", "TraceCache"]

_LIMIT = 512
_VALUES = 16
"""Traces of one key that are kept, for different values of what they were specialised on."""


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
