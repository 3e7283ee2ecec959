"""Programs with their modules changed in place of a tuning's, for experiments and benchmarks."""

import dataclasses
from collections.abc import Callable
from typing import Any

from attn_mlir.frontend.entry import Entry
from attn_mlir.runtime.call import Call


class Rewriting:
    """In place of a tuning: every program has its modules changed, for experiments and benchmarks.

    `attention._tuning = Rewriting(lambda text: ...)` for an `Attention` or an `AttentionEngine`.
    """

    def __init__(self, change: Callable[[str], str]) -> None:
        self._change = change
        self._entries: dict[str, Entry] = {}

    def entry(self, call: Call) -> Entry:
        """See `Tuning.entry`."""
        return self.latest(call.entry)

    def latest(self, entry: Entry, *_: Any) -> Entry:
        """See `Tuning.latest`."""
        traced = entry.traced
        if traced.text not in self._entries:
            texts = (self._change(text) if text else text for text in (traced.text, traced.located, *traced.written))
            text, located, first, second = texts
            self._entries[traced.text] = Entry(dataclasses.replace(traced, text=text, located=located, written=(first, second)))
        return self._entries[traced.text]
