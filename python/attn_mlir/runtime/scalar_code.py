"""Pieces of an online program as torch code: what `attn.init`, `attn.merge` and `attn.finalize` compute, of tensors instead of scalars.

The code is read from the derived IR once, and knows nothing of any row by itself. As it is torch's own operators, it has all of torch's
derivatives. Where a select chooses a branch, the other one gets no gradient, not even 0 times infinity.
"""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

INDEX = "index"
"""The kind of b, h and q_idx among the arguments of a piece."""


@dataclasses.dataclass(frozen=True)
class Op:
    """One operation: its name, the numbers of its operands, and what its attributes say."""

    name: str
    operands: tuple[int, ...]
    attribute: Any = None


@dataclasses.dataclass(frozen=True)
class ScalarCode:
    """One piece. Values are numbered: those of the function's arguments that it reads first, then the piece's, then one for each op."""

    outer: tuple[int, ...] = dataclasses.field(compare=False)
    """Which of the function's arguments it reads. Pieces that do the same with others are equal."""
    kinds: tuple[str, ...]
    """What the piece's arguments are: "float" or "index"."""
    ops: tuple[Op, ...]
    results: tuple[int, ...]

    @property
    def reads_positions(self) -> bool:
        """Whether the results depend on b, h or q_idx."""
        read = {number for op in self.ops for number in op.operands} | set(self.results)
        return any(kind == INDEX and len(self.outer) + n in read for n, kind in enumerate(self.kinds))

    @property
    def contents(self) -> frozenset[int]:
        """Which of the function's arguments it reads for more than their sizes."""
        read = {number for op in self.ops if op.name != "tensor.dim" for number in op.operands} | set(self.results)
        return frozenset(place for number, place in enumerate(self.outer) if number in read)

    def __call__(self, outer: Sequence[Any], arguments: Sequence[Any], score: torch.dtype) -> list[Any]:
        """The results; `outer` are all arguments of the function: tensors, numbers, or shapes of which only sizes are read."""
        run = _Run(self, [*(outer[place] for place in self.outer), *arguments], score)
        return [run.value(number) for number in self.results]


def code_of(block: ir.Block, function: ir.Operation) -> ScalarCode:
    """Reads a piece's block; what the function computes around it, sizes and constants, comes along where the piece needs it."""
    entry = function.regions[0].blocks[0]
    results = list(block.operations[-1].operation.operands)
    needed = _below(results)
    outer = tuple(n for n, argument in enumerate(entry.arguments) if argument in needed)
    numbers: dict[ir.Value, int] = {}
    for value in (*(entry.arguments[n] for n in outer), *block.arguments):
        numbers[value] = len(numbers)
    ops: list[Op] = []
    for view in (*entry.operations, *block.operations):
        op = view.operation
        if not any(result in needed for result in op.results):
            continue
        if op.name not in _KNOWN:
            raise UnsupportedError(f"the merge or the end of this row computes '{op.name}', which partial results do not know")
        ops.append(Op(op.name, tuple(numbers[operand] for operand in op.operands), _attribute(op)))
        numbers[op.results[0]] = len(numbers)
    kinds = tuple(INDEX if isinstance(argument.type, ir.IndexType) else "float" for argument in block.arguments)
    return ScalarCode(outer, kinds, tuple(ops), tuple(numbers[value] for value in results))


def _below(values: Sequence[ir.Value]) -> set[ir.Value]:
    """All that the values are computed of, and the values."""
    found, todo = set[ir.Value](), list(values)
    while todo:
        value = todo.pop()
        if value not in found:
            found.add(value)
            todo.extend(() if isinstance(value.owner, ir.Block) else value.owner.operation.operands)
    return found


def _attribute(op: ir.Operation) -> Any:
    match op.name:
        case "arith.constant":
            value = op.attributes["value"]
            if isinstance(value, ir.FloatAttr):
                return float(value.value)
            width = op.results[0].type
            return bool(ir.IntegerAttr(value).value) if str(width) == "i1" else int(ir.IntegerAttr(value).value)
        case "arith.cmpf" | "arith.cmpi":
            return int(ir.IntegerAttr(op.attributes["predicate"]).value)
        case "tensor.extract":
            return isinstance(op.results[0].type, ir.FloatType)
    return None


class _Run:
    """One evaluation. Inside of a branch of a select, `gates` say where that branch is chosen."""

    def __init__(self, code: ScalarCode, given: list[Any], score: torch.dtype, gates: tuple[Tensor, ...] = ()) -> None:
        self.code, self.given, self.score, self.gates = code, given, score, gates
        self.known: dict[int, Any] = {}

    def value(self, number: int) -> Any:
        if number not in self.known:
            self.known[number] = self._compute(number)
        return self.known[number]

    def _compute(self, number: int) -> Any:
        if number < len(self.given):
            value = self.given[number]
            return torch.tensor(value, dtype=self.score, device="cpu") if isinstance(value, float) else self._gated(value)
        op = self.code.ops[number - len(self.given)]
        match op.name:
            case "arith.constant":
                return torch.tensor(op.attribute, dtype=self.score, device="cpu") if isinstance(op.attribute, float) else op.attribute
            case "tensor.dim":
                return self.given[op.operands[0]].shape[self.value(op.operands[1])]
            case "tensor.extract":
                return self._gated(self._read(op))
            case "arith.select":
                return self._select(*op.operands)
            case "arith.cmpf":
                return _FLOAT_TESTS[op.attribute](*map(self.value, op.operands))
            case "arith.cmpi":
                return _INTEGER_TESTS[op.attribute](*map(self.value, op.operands))
            case "arith.sitofp" | "arith.uitofp":
                (x,) = map(self.value, op.operands)
                return x.to(self.score) if isinstance(x, Tensor) else torch.tensor(float(x), dtype=self.score, device="cpu")
        return _OPERATORS[op.name](*map(self.value, op.operands))

    def _read(self, op: Op) -> Tensor:
        tensor, *indices = [self.given[op.operands[0]], *map(self.value, op.operands[1:])]
        tensor = tensor if isinstance(tensor, Tensor) else torch.as_tensor(tensor, device="cpu")
        read = tensor[tuple(indices)] if indices else tensor
        return read.to(self.score) if op.attribute else read

    def _gated(self, value: Any) -> Any:
        """The value, whose gradient ends where this branch is not chosen."""
        if isinstance(value, Tensor) and value.is_floating_point():
            for gate in self.gates:
                value = torch.where(gate, value, value.detach())
        return value

    def _select(self, condition: int, x: int, y: int) -> Any:
        chosen = self.value(condition)
        if not isinstance(chosen, Tensor):
            return self.value(x if chosen else y)
        if not torch.is_grad_enabled():
            return torch.where(chosen, *(_filled(self.value(n), chosen.device) for n in (x, y)))
        branches = [_Run(self.code, self.given, self.score, (*self.gates, gate)).value(n) for gate, n in ((chosen, x), (~chosen, y))]
        return torch.where(chosen, *(_filled(branch, chosen.device) for branch in branches))


def _filled(x: Any, device: torch.device) -> Any:
    """A constant, which is on the CPU, made on a device: `torch.where` would copy it, which waits for all that the device has to do."""
    if isinstance(x, Tensor) and not x.dim() and x.device != device:
        return torch.full((), x.item(), dtype=x.dtype, device=device)
    return x


def _wide(x: Any) -> Any:
    """An integer in the 64 bits in which kernels compute."""
    return x.long() if isinstance(x, Tensor) else int(x)


def _of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of tensors, of numbers, too."""
    return lambda *operands: function(*map(torch.as_tensor, operands))


_TORCH = (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "tanh", "sin", "cos", "tan", "sinh", "cosh", "atan", "atan2", "erf",
    "floor", "ceil", "trunc", "copysign",
)  # fmt: skip
"""Ops of `math` that torch has functions of the same names for."""
_OPERATORS: dict[str, Callable[..., Any]] = {
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "arith.remf": torch.fmod,
    "arith.negf": torch.neg,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    **{f"math.{name}": getattr(torch, name) for name in _TORCH},
    "math.absf": torch.abs,
    "math.powf": torch.pow,
    "math.cbrt": lambda x: torch.sign(x) * torch.abs(x) ** (1 / 3),
    "math.round": lambda x: torch.sign(x) * torch.floor(torch.abs(x) + 0.5),  # halves away from 0
    "math.roundeven": torch.round,
    "attn.detach": torch.detach,
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.floordivsi": operator.floordiv,
    "arith.remsi": _of_tensors(torch.fmod),  # with the sign of the first, as in C
    "arith.minsi": _of_tensors(torch.minimum),
    "arith.maxsi": _of_tensors(torch.maximum),
    "arith.andi": operator.and_,
    "arith.ori": operator.or_,
    "arith.xori": operator.xor,
    "math.absi": abs,
    "arith.fptosi": _of_tensors(Tensor.long),
    **dict.fromkeys(("arith.index_cast", "arith.extui", "arith.extsi"), _wide),
    **dict.fromkeys(("arith.extf", "arith.truncf"), lambda x: x),
}


def _unordered(test: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: test(a, b) | torch.isnan(a) | torch.isnan(b)


def _numbers(a: Tensor, b: Tensor) -> Tensor:
    return ~(torch.isnan(a) | torch.isnan(b))


_FLOAT_TESTS: dict[int, Callable[[Any, Any], Any]] = {
    1: torch.eq, 2: torch.gt, 3: torch.ge, 4: torch.lt, 5: torch.le,
    6: lambda a, b: torch.ne(a, b) & _numbers(a, b),
    7: _numbers,
    8: _unordered(torch.eq), 9: _unordered(torch.gt), 10: _unordered(torch.ge), 11: _unordered(torch.lt), 12: _unordered(torch.le),
    13: torch.ne,
    14: lambda a, b: ~_numbers(a, b),
}  # fmt: skip
"""`arith.cmpf` by its predicate; comparisons of torch are false where one is no number, but for `ne`."""

_INTEGER_TESTS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
"""`arith.cmpi` by its predicate."""

_SPECIAL = {"arith.constant", "tensor.dim", "tensor.extract", "arith.select", "arith.cmpf", "arith.cmpi", "arith.sitofp", "arith.uitofp"}
_KNOWN = frozenset({*_OPERATORS, *_SPECIAL})
