"""Example programs for the tests, and how to run them in the reference evaluator."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.reference import evaluate
from contexts import loaded_context

INPUTS = Path(__file__).parent.parent / "Inputs"


def text_of(name: str) -> str:
    """The text of `test/Inputs/<name>.mlir`."""
    return (INPUTS / f"{name}.mlir").read_text()


@contextmanager
def parsed(text: str) -> Iterator[ir.Module]:
    """The module that `text` says, in a context of its own."""
    context = loaded_context()
    with context:
        yield ir.Module.parse(text)


def run(text: str, inputs: Sequence[Any], **options: Any) -> list[np.ndarray]:
    """Evaluates `@attention` of a program."""
    with parsed(text) as module:
        return evaluate(module, inputs, **options)
