"""Reads a tile function: what values are made of, which loops follow each other, and which row values may stay partial sums."""

from attn_mlir.backends.gpu.scalar_ops import EXACT
from attn_mlir.dialects.regions import yielded
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import maker, walk


def operations(block: ir.Block) -> list[ir.Operation]:
    """The ops of a block."""
    return [view.operation for view in block.operations]


def body(op: ir.Operation) -> ir.Block:
    """The only block of an op's first region."""
    return op.regions[0].blocks[0]


def element_name(type_: ir.Type) -> str:
    """ "f16", "bf16", "f32"... of a tile, a memref or a scalar."""
    for kind in (ir.RankedTensorType, ir.MemRefType):
        if isinstance(type_, kind):
            return str(type_.element_type)
    return str(type_)


def is_row(type_: ir.Type) -> bool:
    """Whether it is that of a tile of rank 1."""
    return isinstance(type_, ir.RankedTensorType) and type_.rank == 1


def is_tile(value: ir.Value) -> bool:
    """Whether it is a tile of any rank."""
    return isinstance(value.type, ir.RankedTensorType)


def holds(op: ir.Operation, *names: str) -> bool:
    """Whether an op of these names is in its regions."""
    return any(inner.name in names for inner in walk(op))


def widened(value: ir.Value) -> ir.Value:
    """The f32 value that is rounded to this one, or the value itself."""
    op = maker(value)
    return op.operands[0] if op is not None and op.name == "arith.truncf" else value


def hint(value: ir.Value, otherwise: str) -> str:
    """The user's name of a value."""
    op = maker(value)
    return op.location.name_str if op is not None and isinstance(op.location, ir.NameLoc) else otherwise


def constant(value: ir.Value) -> int | float | None:
    """The number that a value is, if it is an `arith.constant`."""
    op = maker(value)
    if op is None or op.name != "arith.constant":
        return None
    attribute = op.attributes["value"]
    return ir.IntegerAttr(attribute).value if isinstance(attribute, ir.IntegerAttr) else ir.FloatAttr(attribute).value


def chains(block: ir.Block) -> list[list[ir.Operation]]:
    """The loops directly in the block, those together whose carried values are handed from one to the next and are used nowhere else."""
    found: list[list[ir.Operation]] = []
    for op in operations(block):
        if op.name != "scf.for":
            continue
        before = found[-1][-1] if found else None
        if before is not None and list(before.results) and list(before.results) == list(op.operands)[3:] and _handed_on(before, op):
            found[-1].append(op)
        else:
            found.append([op])
    return found


def _handed_on(before: ir.Operation, after: ir.Operation) -> bool:
    return all(use.owner.operation == after for result in before.results for use in result.uses)


def partial_sums(loops: list[ir.Operation]) -> set[ir.Value]:
    """Row values in the loops (reductions, values made of them, carried values) that each thread may keep as its own part of a sum.

    A carried value is one if it starts anywhere and then changes by products with whole row values and by additions of sums only.
    """
    forced: set[int] = set()
    while True:
        results = [_Partial(loop, forced) for loop in loops]
        wanted = set(forced)
        for result in results:
            wanted |= result.whole_arguments()
        if wanted == forced:
            return set().union(*(result.partial for result in results))
        forced = wanted


class _Partial:
    """Which row values of one loop hold parts; a violation makes whole what it comes from, until there is none."""

    def __init__(self, loop: ir.Operation, forced: set[int]) -> None:
        self._loop = loop
        self._arguments = list(body(loop).arguments)[1:]
        self._whole: set[ir.Value] = {self._arguments[number] for number in forced}
        self._roots: dict[ir.Value, frozenset[ir.Value]] = {}
        while True:
            count = len(self._whole)
            self._roots = {}
            for argument in self._arguments:
                if is_row(argument.type) and argument not in self._whole:
                    self._roots[argument] = frozenset({argument})
            self._block(body(loop))
            for argument, value in zip(self._arguments, yielded(body(loop)), strict=True):
                if (argument in self._roots) != (value in self._roots):
                    self._demote(argument, value)
            if len(self._whole) == count:
                break
        self.partial = set(self._roots)

    def whole_arguments(self) -> set[int]:
        return {number for number, argument in enumerate(self._arguments) if argument not in self._roots}

    def _demote(self, *values: ir.Value) -> None:
        for value in values:
            self._whole |= self._roots.get(value, frozenset())

    def _block(self, block: ir.Block) -> None:
        for op in operations(block):
            if op.name == "tile.map":
                self._map(op)
            elif op.name == "scf.if":
                self._branch(op)
            elif op.name != "scf.yield":
                self._demote(*op.operands)
                if op.name == "scf.for":
                    self._whole |= {root for inner in walk(op) for value in inner.operands for root in self._roots.get(value, frozenset())}

    def _branch(self, op: ir.Operation) -> None:
        for region in op.regions:
            for block in region.blocks:  # there may be no other branch
                self._block(block)
        if not list(op.results):
            return
        for result, *values in zip(op.results, *(yielded(region.blocks[0]) for region in op.regions), strict=True):
            if all(value in self._roots for value in values):
                self._roots[result] = frozenset().union(*(self._roots[value] for value in values))
            else:
                self._demote(*values)

    def _map(self, op: ir.Operation) -> None:
        region = body(op)
        scalars: dict[ir.Value, frozenset[ir.Value]] = {}
        rank_one = len(list(region.arguments)) == 1
        for inner in operations(region)[:-1]:
            parts = [self._roots[v] if inner.name == "tensor.extract" and v in self._roots else scalars.get(v) for v in inner.operands]
            if not any(part is not None for part in parts):
                continue
            roots = frozenset[ir.Value]().union(*(part for part in parts if part is not None))
            if rank_one and _linear(inner.name, [part is not None for part in parts]):
                scalars[inner.results[0]] = roots
            else:
                self._whole |= roots
        values = yielded(region)
        if rank_one:
            self._roots.update({result: scalars[value] for result, value in zip(op.results, values, strict=True) if value in scalars})
            return
        for value in values:
            self._whole |= scalars.get(value, frozenset())
        kinds = op.opview.kinds()
        for kind, result in zip(kinds, list(op.results)[len(values) - len(kinds) :], strict=True):
            if kind == "sum" and result not in self._whole:
                self._roots[result] = frozenset({result})


def _linear(name: str, partial: list[bool]) -> bool:
    """Whether the op of parts is the part of the op's result; `partial` tells which operands are parts."""
    match name:
        case "tensor.extract" | "arith.negf":
            return True
        case "arith.addf" | "arith.subf":
            return all(partial)
        case "arith.mulf":
            return not all(partial)
        case "arith.divf":
            return partial == [True, False]
    return False


def is_quotient(op: ir.Operation) -> bool:
    """Whether an op divides, and a product with a reciprocal may take its place."""
    return op.name == "arith.divf" and EXACT not in op.attributes
