"""What a compiled program consists of: kernels, and the steps in which a host function calls them.

A host function (see `attn-outline`) holds nothing but calls and sums of two tensors. It is read once, and kept beside the code in
the disk cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attn_mlir.backends import plain
from attn_mlir.backends.sizes import Size, like, problem_of, read_sizes
from attn_mlir.mlir import ir
from attn_mlir.passes.shapes import SAME, SHAPES


@dataclass(frozen=True)
class KernelGrid:
    """A worker's grid and outputs, as its attribute `tile.kernel` tells them.

    The grid runs over blocks of `block_q` rows of argument number `over`, its heads and its batch; "pairs" are chunks of
    keys instead of blocks. For "chunks" it is `blocks` blocks of the state's columns, the heads of argument `over`, and its batch, or,
    where argument `sequences` has the offsets of sequences, one for each of these; with `segment` > 0, one for each segment of so many of
    the argument's positions, segment i of batch entry b and N segments at b N + i. An output is "store" (every element is written),
    "accumulate" (sums are added to zeros; for "chunks" every block of columns writes a slot of its own) or
    "scatter" (sums are added at computed places; `disjoint` tells along which of chunk, head and batch these never meet). On packed tensors
    `lengths` numbers the argument with the lengths of the sequences over which the grid runs, and that with those of the other side, if
    any: the driver makes lists of work of them (`backends.work`), arguments behind the outputs. `keys` numbers that with k. `ragged` are
    the arguments that the kernel takes as ragged views, and `paged` those that lie in pages (see `attn-tile-rows`).
    """

    name: str
    block_q: int
    grid: str
    over: int
    outputs: tuple[str, ...]
    disjoint: tuple[tuple[bool, ...], ...]
    serial: bool
    blocks: int = 1
    sequences: int = -1
    segment: int = 0
    lengths: tuple[int, ...] = ()
    keys: int = 1
    ragged: tuple[int, ...] = ()
    paged: tuple[int, ...] = ()
    list: int = 0
    """How many rows have a list of keys of their own, where there are such (`attn.key_lists`): no block has rows of two lists."""

    def blocks_of(self, length: int) -> int:
        """How many blocks so many rows make."""
        if not self.list:
            return -(-length // self.block_q)
        return length // self.list * -(-self.list // self.block_q) - (-(length % self.list) // self.block_q)

    def sequences_of(self, arguments: Sequence[Any]) -> int:
        """How many sequences (or segments of them) the programs of a kernel with the grid "chunks" have, on these arguments."""
        if self.sequences >= 0:
            return arguments[self.sequences].shape[0] - 1
        batch, _, length = arguments[self.over].shape[:3]
        return batch * -(-length // self.segment) if self.segment else batch


@dataclass(frozen=True)
class Argument:
    """The type of a value: an element type with the sizes of a tensor (-1: any), or without for a scalar."""

    element: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class StepResult:
    """What a step makes, with its sizes as arithmetic on those of the step's operands."""

    sizes: tuple[Size, ...]
    type: Argument


@dataclass(frozen=True)
class HostStep:
    """A call of a kernel, or without a kernel the sum of two tensors. Values are numbered: arguments, then all results in order."""

    kernel: str
    operands: tuple[int, ...]
    results: tuple[StepResult, ...]
    same: int = -1
    """The operand that the result is where it would have its shape: the sum over groups of one head each. -1: none is."""


@dataclass(frozen=True)
class Host:
    """A host function."""

    name: str
    arguments: tuple[Argument, ...]
    steps: tuple[HostStep, ...]
    returns: tuple[int, ...]


def to_json(host: Host, kernels: Mapping[str, KernelGrid]) -> dict[str, Any]:
    """Both as plain data."""
    return {"host": asdict(host), "kernels": [asdict(kernel) for kernel in kernels.values()]}


def from_json(fields: Mapping[str, Any]) -> tuple[Host, dict[str, KernelGrid]]:
    """The inverse of `to_json`. Raises LookupError, TypeError or ValueError for other data."""
    host = plain.read(Host, fields["host"])
    kernels = {kernel.name: kernel for kernel in plain.read(tuple[KernelGrid, ...], fields["kernels"])}
    _check(host, kernels)
    return host, kernels


def _check(host: Host, kernels: Mapping[str, KernelGrid]) -> None:
    """Raises LookupError or ValueError where steps do not fit to each other or to their kernels."""
    made = len(host.arguments)
    for step in host.steps:
        if not all(0 <= operand < made for operand in step.operands) or len(step.operands) < (1 if step.kernel else 2):
            raise ValueError(f"a step reads {step.operands}, of {made} values")
        if step.kernel:
            kernel = kernels[step.kernel]
            sizes = min(kernel.block_q, kernel.blocks) >= 1 and min(kernel.over, kernel.segment, kernel.list) >= 0
            if (
                not sizes
                or step.same >= len(step.operands)
                or not max(kernel.over, kernel.sequences, *kernel.lengths, kernel.keys if kernel.lengths else 0) < len(step.operands)
                or len(kernel.outputs) != len(step.results)
                or any(not 0 <= number < len(step.operands) + len(step.results) for number in (*kernel.ragged, *kernel.paged))
            ):
                raise ValueError(f"the step does not fit to {kernel}")
        if any(problem_of(size, len(step.operands)) for result in step.results for size in result.sizes):
            raise ValueError(f"sizes of {step.results} are not those of {len(step.operands)} operands")
        made += len(step.results)
    if not all(0 <= value < made for value in host.returns):
        raise ValueError(f"the program returns {host.returns}, of {made} values")


def read_host(function: ir.Operation) -> Host:
    """Reads an outlined function: one that only calls, or one that is a kernel itself and has `shapes`."""
    name = ir.StringAttr(function.attributes["sym_name"]).value
    block = function.regions[0].blocks[0]
    arguments = tuple(_type(argument.type) for argument in block.arguments)
    functions = {ir.StringAttr(view.operation.attributes["sym_name"]).value: view.operation for view in function.block.operations}
    if SHAPES in function.attributes:
        step = _step(function, tuple(range(len(arguments))), functions)
        return Host(name, arguments, (step,), tuple(range(len(arguments), len(arguments) + len(step.results))))
    numbers = {argument: number for number, argument in enumerate(block.arguments)}
    steps = []
    operations = [view.operation for view in block.operations]
    for call in operations[:-1]:
        operands = tuple(numbers[v] for v in call.operands)
        if call.name == "arith.addf":
            type_ = _type(call.result.type)
            steps.append(HostStep("", operands, (StepResult(like(0, len(type_.shape or ())), type_),)))
        else:
            steps.append(_step(functions[ir.FlatSymbolRefAttr(call.attributes["callee"]).value], operands, functions))
        for result in call.results:
            numbers[result] = len(numbers)
    return Host(name, arguments, tuple(steps), tuple(numbers[value] for value in operations[-1].operands))


def _step(function: ir.Operation, operands: tuple[int, ...], functions: Mapping[str, ir.Operation]) -> HostStep:
    """A call of a function; its shape function is one of `functions`."""
    types = [_type(type_) for type_ in ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).results]
    shapes = functions[ir.FlatSymbolRefAttr(function.attributes[SHAPES]).value]
    sizes = read_sizes(shapes, [len(type_.shape or ()) for type_ in types])
    same = ir.IntegerAttr(function.attributes[SAME]).value if SAME in function.attributes else -1
    results = tuple(StepResult(each, type_) for each, type_ in zip(sizes, types, strict=True))
    return HostStep(ir.StringAttr(function.attributes["sym_name"]).value, operands, results, same)


def _type(type_: ir.Type) -> Argument:
    if not isinstance(type_, ir.RankedTensorType):
        return Argument(str(type_), None)
    return Argument(str(type_.element_type), tuple(-1 if type_.is_dynamic_dim(d) else type_.shape[d] for d in range(type_.rank)))


def read_kernel(function: ir.Operation, results: int) -> KernelGrid:
    """Reads `tile.kernel` of a kernel with that many outputs."""
    fields = ir.DictAttr(function.attributes["tile.kernel"])
    outputs = tuple(ir.StringAttr(kind).value for kind in ir.ArrayAttr(fields["outputs"])) if "outputs" in fields else ("store",) * results
    axes: list[tuple[bool, ...]] = [()] * results
    if "disjoint" in fields:
        axes = [tuple(ir.BoolAttr(b).value for b in ir.ArrayAttr(a)) for a in ir.ArrayAttr(fields["disjoint"])]
    return KernelGrid(
        name=ir.StringAttr(function.attributes["sym_name"]).value,
        block_q=ir.IntegerAttr(fields["block_q"]).value,
        grid=ir.StringAttr(fields["grid"]).value if "grid" in fields else "rows",
        over=ir.IntegerAttr(fields["over"]).value if "over" in fields else 0,
        outputs=outputs,
        disjoint=tuple(axes),
        serial="serial" in fields and ir.BoolAttr(fields["serial"]).value,
        blocks=ir.IntegerAttr(fields["blocks"]).value if "blocks" in fields else 1,
        sequences=ir.IntegerAttr(fields["sequences"]).value if "sequences" in fields else -1,
        segment=ir.IntegerAttr(fields["segment"]).value if "segment" in fields else 0,
        list=ir.IntegerAttr(fields["list"]).value if "list" in fields else 0,
        lengths=tuple(ir.DenseI64ArrayAttr(fields["lengths"])) if "lengths" in fields else (),
        keys=ir.IntegerAttr(fields["keys"]).value if "keys" in fields else 1,
        paged=tuple(ir.DenseI64ArrayAttr(fields["paged"])) if "paged" in fields else (),
        ragged=tuple(ir.DenseI64ArrayAttr(fields["ragged"])) if "ragged" in fields else (),
    )
