"""Kinds of captured values: what programs take of one, how operators of torch are handed them, and what of one tells where it is read.

Another kind is another member here, with a type in `emit.Emitter.types`, and with words in the launchers of backends.
"""

import enum
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch


def as_tensor(x: Any) -> torch.Tensor:
    """A captured tensor as one of torch; numpy arrays share their memory where torch can."""
    if isinstance(x, torch.Tensor):
        return x
    tensor = torch.from_numpy(x.copy() if min(x.strides, default=0) < 0 else x)
    tensor.shares_numpy = True  # type: ignore[attr-defined]  # who keeps it for later copies it: no version tells of changes
    return tensor


def _nothing(_: Any) -> None:
    """Floats do not reach an index but through a cast, whose value the bounds of reads take for unknown."""


class CaptureKind(enum.StrEnum):
    """One kind. Names of programs have its value; the order of the members is that of the lists of an operator."""

    TENSOR = "tensor", "Tensor[] captures", as_tensor, lambda tensor: tensor.shape
    FLOAT = "float", "float[]? floats", float, _nothing
    INT = "int", "SymInt[]? ints", int, lambda number: number

    argument: str
    """The argument of operators that holds all captures of this kind.

    AOTInductor hands over an empty list as None, so that lists which may be empty are optional. That of tensors cannot be: torch.vmap
    does not look into an optional list. Graphs give it q where nothing is captured, which nobody reads (`dispatch.forward_in_graph`).
    """
    read: Callable[[Any], Any]
    """What programs take of a value that a function captures."""
    key: Callable[[Any], Any]
    """What of a value tells where functions read captured tensors; data of these apart."""

    def __new__(cls, value: str, argument: str, read: Callable[[Any], Any], key: Callable[[Any], Any]) -> "CaptureKind":
        made = str.__new__(cls, value)
        made._value_, made.argument, made.read, made.key = value, argument, read, key
        return made

    @property
    def node(self) -> Literal["float", "int", "bool"]:
        """The kind of nodes, and so the type in the IR, of such a number."""
        return self.value  # type: ignore[return-value]

    @staticmethod
    def of_number(value: float) -> "CaptureKind":
        """The kind of a captured Python number."""
        return CaptureKind.INT if isinstance(value, int) else CaptureKind.FLOAT


Numbers = tuple[Sequence[Any], ...]
"""Captured numbers in a list for each kind, in the order of the members, as operators take them after the list of tensors."""
_NAMES = tuple([kind.value for kind in CaptureKind])
COUNT = len(_NAMES)
"""How many lists there are, that of tensors first."""


def pack(kinds: Sequence[str], values: Sequence[Any]) -> tuple[list[torch.Tensor], Numbers]:
    """Captured tensors, and numbers by kind; dynamo traces this with names of kinds."""
    lists: dict[str, list[Any]] = {name: [] for name in _NAMES}
    for kind, value in zip(kinds, values, strict=True):
        lists[kind].append(value)
    tensors, *numbers = lists.values()
    return tensors, tuple(numbers)


class CaptureKinds(tuple[CaptureKind, ...]):
    """The kinds of all captures of a program, in order."""

    def __new__(cls, names: Iterable[str]) -> "CaptureKinds":
        return super().__new__(cls, map(CaptureKind, names))

    def unpack(self, tensors: Sequence[Any], numbers: Numbers) -> list[Any]:
        """The inverse of `pack`."""
        each = dict(zip(_NAMES, map(iter, (tensors, *numbers)), strict=True))
        return [next(each[kind]) for kind in self]

    def key(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """What of the values tells where functions read captured tensors."""
        return tuple([kind.key(value) for kind, value in zip(self, values, strict=False)])

    @functools.cached_property
    def tensors(self) -> tuple[int, ...]:
        """Which of the captures are tensors."""
        return tuple([i for i, kind in enumerate(self) if kind is CaptureKind.TENSOR])


ARGUMENTS = ", ".join([kind.argument for kind in CaptureKind])
"""What schemas of operators say of captures."""
