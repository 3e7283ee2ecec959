"""Forces choices on all kernels of an attention, for experiments and benchmarks."""

from typing import Any

from attn_mlir.backends.nvidia.attributes import Fields
from attn_mlir.backends.nvidia.tuning.choices import EVERY, with_choices


class Forced:
    """In place of an attention's tuning: every program gets these choices."""

    def __init__(self, choices: Fields) -> None:
        self._choices = {EVERY: choices}
        self._entries: dict[str, Any] = {}

    def entry(self, entry: Any, *_: Any) -> Any:
        """See `Tuning.entry`."""
        return self.latest(entry)

    def latest(self, entry: Any, *_: Any) -> Any:
        """See `Tuning.latest`."""
        from attn_mlir.api.tuning import Entry, with_texts

        text = entry.traced.text
        if text not in self._entries:
            self._entries[text] = Entry(with_texts(entry.traced, lambda each: with_choices(each, self._choices)))
        return self._entries[text]


def overridden(attention: Any, choices: Fields) -> Any:
    """The attention, an `Attention` or `AttentionEngine`, with choices such as {"emitter": "tilelang"} for every kernel."""
    attention._tuning = Forced(choices)
    return attention
