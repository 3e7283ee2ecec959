"""What a backend finds on the machine it is on, for `python -m attn_mlir.doctor`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "missing", "wrong"]
"""It works; it works less well than it could; it is not there, which need not matter; it is there and does not work."""


@dataclass(frozen=True)
class Finding:
    """One line of a report: what was looked for, and what was found, or why not and what to do."""

    name: str
    state: State
    text: str


def tried(name: str, look: Callable[[], str], otherwise: State = "missing") -> Finding:
    """What `look` finds; `otherwise`, with what it raised, where it raises."""
    try:
        return Finding(name, "ok", look())
    except Exception as error:  # whatever is wrong, the report says so and goes on
        said = " ".join(str(error).split())
        return Finding(name, otherwise, said or type(error).__name__)
