"""What the user's code is told of the class of a traced value: that of what it stands for.

`isinstance` asks an object for its `__class__` where its own class does not fit. The user's code, and it alone, is then told
`torch.Tensor`, or that of the captured Python number; everybody else, who would take the object for one in memory, is told the truth.
"""

import dis
import functools
import sys
from types import CodeType
from typing import Any

import torch

from attn_mlir.frontend import scope, where

_ASKING = ("isinstance", "issubclass")
_PASSED_ON = ("<frozen abc>", "abc.py", "typing.py")
"""Files of Python's whose `__instancecheck__` asks for somebody else."""


def class_of(x: Any) -> type:
    """The class that a traced value stands for. That of a number is part of what a trace is found by."""
    node = getattr(x, "_node", None)
    return torch.Tensor if node is None or node.known is None else type(node.known)


def seen_class(x: Any, kind: type) -> type:
    """`x.__class__`, for whoever asks now."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.endswith(_PASSED_ON):
        frame = frame.f_back
    code = frame.f_code
    users = not where.is_package(code.co_filename) or code.co_name == "is_tensor"
    return class_of(x) if users and scope.is_tracing() and frame.f_lasti in _questions(code) else kind


@functools.lru_cache(maxsize=512)
def _questions(code: CodeType) -> frozenset[int]:
    """The instructions that ask for a class: calls of `isinstance`, patterns of `match`, and `x.__class__`."""
    found = set()
    starts = set()
    for instruction in dis.get_instructions(code):
        place = instruction.positions
        start = None if place is None or place.lineno is None else (place.lineno, place.col_offset)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval in _ASKING:
            starts.add(start)
        elif instruction.opname.startswith(("CALL", "PRECALL")) and start in starts:
            found.add(instruction.offset)
        elif instruction.opname == "MATCH_CLASS" or (instruction.opname == "LOAD_ATTR" and instruction.argval == "__class__"):
            found.add(instruction.offset)
    return frozenset(found)


class _Asking(type):
    """The class of `type` in the user's functions, so that it is called, and asked for instances, as `type` is."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and hasattr(type(arguments[0]), "stands_for_tensor"):
            return class_of(arguments[0])
        return type(*arguments, **options)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, type)

    def __subclasscheck__(cls, x: Any) -> bool:
        return issubclass(x, type)

    def __getitem__(cls, x: Any) -> Any:
        return type[x]

    def __eq__(cls, other: object) -> bool:
        return other is type or other is cls

    def __hash__(cls) -> int:
        return hash(type)


class UsersType(type, metaclass=_Asking):
    """Stands for `type` in the user's functions."""
