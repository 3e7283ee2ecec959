"""The program of a call."""

from collections.abc import Callable
from typing import Any

import pytest

from attn_mlir.runtime.programs import Program


def text_of(call: Callable[[], object]) -> str:
    """The module at stage 0 that a call runs, whether or not another one has made it before."""
    asked: list[Program] = []
    check = Program.check

    def seen(self: Program, *given: Any, **named: Any) -> Any:
        asked.append(self)
        return check(self, *given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "check", seen)
        call()
    return asked[-1].text
