"""Tasks: which traced attention an operator or an autograd function is about, by which arguments, and with which captured numbers."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from attn_mlir.capture_kinds import Numbers
from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.runtime import programs


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """What an operator takes besides tensors; `inputs` below are q, k and v, [B, H, S, D], and `captures` the captured tensors."""

    program: programs.Program
    wrt: str
    """The arguments that need a derivative, joined by "+"."""
    layout: str
    """"bhsd", or the order of the memory of results: "bshd->bhsd" has that of gradients of q, k and v, then that of o and its tangent."""
    numbers: Numbers
    captures: int
    """How many captured tensors there are."""

    @property
    def words(self) -> tuple[str, str, str]:
        """The last arguments of operators."""
        return self.program.name, self.wrt, self.layout

    @property
    def places(self) -> tuple[int, ...]:
        """Where what `wrt` names stands among inputs and captures."""
        return self.program.wanted(self.wrt) if self.wrt else ()

    def by(self, places: Iterable[int]) -> "Task":
        """The same by other arguments: those at these places."""
        positions = self.program.tensor_positions()
        return dataclasses.replace(self, wrt="+".join([self.program.argument(positions[place]) for place in sorted(set(places))]))

    def arguments(self, inputs: Sequence[Tensor], captures: Sequence[Tensor], *more: Any) -> list[Any]:
        """Those of the program's function, or with `more` of a derivative."""
        return [*inputs, *self.program.kinds.unpack(captures, self.numbers), *more]

    def run(self, function: str, arguments: Sequence[Any], order: str) -> list[Tensor]:
        """Runs a derivative, whose results have the memory order `order` where they are shaped like q, k, v or o."""
        return self.derivative(function, arguments[0]).run(arguments, order)

    def derivative(self, function: str, q: Tensor) -> Any:
        """The compiled derivative for the device of q. Raises UnsupportedError where there is none."""
        try:
            return self.program.derivative(q.device.type, function, self.wrt)
        except CompileError as error:
            if "no derivative" not in str(error):
                raise
            raise UnsupportedError(str(error)) from error

    def named(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Those of inputs and captures that `wrt` names."""
        return [tensors[place] for place in self.program.wanted(self.wrt)]

    def spread(self, gradients: Sequence[Tensor]) -> list[Tensor | None]:
        """Gradients of what `wrt` names in the places of all inputs and captures."""
        every: list[Tensor | None] = [None] * (3 + self.captures)
        for place, gradient in zip(self.program.wanted(self.wrt), gradients, strict=True):
            every[place] = gradient
        return every

    def apart(self, made: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What a tangent's program gives, each o with its tangent and then the rows and theirs, as results and their tangents."""
        pairs = 2 * self.program.weights
        rows = self.program.made - pairs // 2
        return [*made[:pairs:2], *made[pairs : pairs + rows]], [*made[1:pairs:2], *made[pairs + rows :]]


def task_of(captures: Sequence[Tensor], *told: Any) -> Task:
    """The task that the arguments of an operator tell: captured tensors, numbers by kind, and the three words."""
    *numbers, program, wrt, layout = told
    return Task(programs.find(program), wrt, layout, tuple([each or () for each in numbers]), len(captures))
