"""Notes which of several ways calls take."""

from typing import Any

import pytest


def note_ways(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[bool]:
    """Whether each call of a function of the module from now on gives a result, which is not None."""
    taken, before = list[bool](), getattr(module, name)

    def noting(*arguments: Any) -> Any:
        made = before(*arguments)
        taken.append(made is not None)
        return made

    monkeypatch.setattr(module, name, noting)
    return taken
