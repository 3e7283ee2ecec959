"""The frame of a kernel of sums: its function on memrefs, its attribute, and the scalars around the op it computes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from attn_mlir.dialects.numbers import i64
from attn_mlir.mlir import func, ir, scf
from attn_mlir.passes.tiling.scalars import ScalarEmitter, clone_scalar


@dataclass(frozen=True)
class Output:
    """One result of the function: the op that makes it, how the kernel writes it, and which programs never share an element.

    `kind` is "store", "accumulate" or "scatter"; `disjoint` is about programs of different chunks, heads and batches. `number` is that
    of the maker's result.
    """

    maker: ir.Operation
    kind: str
    disjoint: tuple[bool, ...] = ()
    number: int = 0

    def memory(self) -> ir.Type:
        """The memref of the result, after the slots of programs that must not meet."""
        type_ = ir.RankedTensorType(self.maker.results[self.number].type)
        return _in_memory(type_, {"store": 0, "accumulate": 1, "scatter": 3}[self.kind])


class Frame:
    """A kernel under construction, and what its body reads from outside."""

    def __init__(
        self,
        function: ir.Operation,
        cluster: Sequence[ir.Operation],
        outputs: Sequence[Output],
        extra: Sequence[str | tuple[str, ir.Type]] = (),
        names: tuple[Mapping[int, str], Sequence[str]] | None = None,
    ) -> None:
        """Inserts the kernel before the function, under the same name. `extra` names arguments after the outputs, of type index by default.

        `names` are those of arguments, by their numbers, that have none in the function, and of the outputs.
        """
        entry = function.regions[0].blocks[0]
        self._function, self._cluster = function, list(cluster)
        with cluster[0].location, ir.InsertionPoint(function):
            inputs = [in_memory(argument.type) for argument in entry.arguments]
            further = [(each, ir.IndexType.get()) if isinstance(each, str) else each for each in extra]
            types = [*inputs, *[output.memory() for output in outputs], *(type_ for _, type_ in further)]
            name = ir.StringAttr(function.attributes["sym_name"]).value
            self.kernel = func.FuncOp(name, ir.FunctionType.get(types, []), loc=function.location)
            inner = [
                name if names is None or not name.startswith("arg") else names[0].get(n, name)
                for n, name in enumerate(argument_names(entry))
            ]
            made = [f"out{n}" for n in range(len(outputs))] if names is None else names[1]
            locations = [ir.Location.name(name, cluster[0].location) for name in (*inner, *made, *(name for name, _ in further))]
            self.block = ir.Block.create_at_start(self.kernel.regions[0], types, locations)
        arguments = list(self.block.arguments)
        self.outputs = arguments[len(inputs) : len(inputs) + len(outputs)]
        self.extra = arguments[len(inputs) + len(outputs) :]
        self._outer = ScalarEmitter(dict(zip(entry.arguments, arguments, strict=False)))

    def describe(self, attributes: Mapping[str, ir.Attribute | int | str], outputs: Sequence[Output]) -> None:
        """Attaches `tile.kernel`; see `attn-tile-rows`."""
        boxed: dict[str, ir.Attribute] = {}
        for name, value in attributes.items():
            boxed[name] = i64(value) if isinstance(value, int) else ir.StringAttr.get(value) if isinstance(value, str) else value
        boxed["outputs"] = ir.ArrayAttr.get([ir.StringAttr.get(output.kind) for output in outputs])
        boxed["disjoint"] = ir.ArrayAttr.get([ir.ArrayAttr.get([ir.BoolAttr.get(x) for x in output.disjoint]) for output in outputs])
        self.kernel.attributes["tile.kernel"] = ir.DictAttr.get(boxed)

    def copy_scalars(self) -> None:
        """Copies what the function computes beside the cluster, at the current insertion point."""
        for view in list(self._function.regions[0].blocks[0].operations)[:-1]:
            op = view.operation
            if op in self._cluster:
                continue
            clone = clone_scalar(op, [self._outer.emit(operand) for operand in op.operands])
            for old, new in zip(op.results, clone.results, strict=True):
                self._outer.set(old, new)

    def get(self, value: ir.Value) -> ir.Value:
        """What a value of the function is in the kernel."""
        return self._outer.emit(value)

    @property
    def outer(self) -> ScalarEmitter:
        """Emits values of the function."""
        return self._outer

    def scalars(self, known: Mapping[ir.Value, ir.Value] | None = None) -> ScalarEmitter:
        """An emitter that sees the function's values, and `known`."""
        return ScalarEmitter(known or {}, lambda value: self._outer.emit(value) if self._in_function(value) else None)

    def _in_function(self, value: ir.Value) -> bool:
        owner = value.owner
        return (owner if isinstance(owner, ir.Block) else owner.operation.block) == self._function.regions[0].blocks[0]


def branch(
    condition: ir.Value, carried: Sequence[ir.Value], then: Callable[[], Sequence[ir.Value]], otherwise: Callable[[], Sequence[ir.Value]]
) -> list[ir.Value]:
    """`scf.if` that makes values of the carried ones' types."""
    op = scf.IfOp(condition, [value.type for value in carried], has_else=True)
    for block, make in ((op.then_block, then), (op.else_block, otherwise)):
        with ir.InsertionPoint(block):
            scf.YieldOp(list(make()))
    return list(op.results)


def same(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values are one, or equal constants."""
    if a == b:
        return True
    owners = [value.owner for value in (a, b)]
    if any(isinstance(owner, ir.Block) or owner.operation.name != "arith.constant" for owner in owners):
        return False
    return owners[0].operation.attributes["value"] == owners[1].operation.attributes["value"]


def loop(
    begin: ir.Value,
    end: ir.Value,
    step: ir.Value,
    carried: Sequence[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], Sequence[ir.Value]],
) -> list[ir.Value]:
    """`scf.for` whose `body(position, carried)` returns the next carried values."""
    op = scf.ForOp(begin, end, step, list(carried))
    with ir.InsertionPoint(op.body):
        scf.YieldOp(list(body(op.induction_variable, list(op.inner_iter_args))))
    return list(op.results)


def in_memory(type_: ir.Type) -> ir.Type:
    """The memref, with any strides, that holds a tensor; other types stay."""
    return _in_memory(type_, 0) if isinstance(type_, ir.RankedTensorType) else type_


def _in_memory(type_: ir.RankedTensorType, slots: int) -> ir.Type:
    dynamic = ir.ShapedType.get_dynamic_size()
    rank = type_.rank + slots
    if rank == 0:
        return ir.MemRefType.get([], type_.element_type)
    layout = ir.StridedLayoutAttr.get(0, [ir.ShapedType.get_dynamic_stride_or_offset()] * rank)
    return ir.MemRefType.get([*[dynamic] * slots, *type_.shape], type_.element_type, layout=layout)


def argument_names(entry: ir.Block) -> list[str]:
    """The arguments' names from their locations, else their positions."""
    locations = [argument.location for argument in entry.arguments]
    return [where.name_str if isinstance(where, ir.NameLoc) else f"arg{position}" for position, where in enumerate(locations)]


def argument_number(value: ir.Value) -> int | None:
    """Which argument of its function a value is, or None."""
    return ir.BlockArgument(value).arg_number if isinstance(value.owner, ir.Block) else None
