"""What chunk scans compute of each chunk without the state, in kernels of all chunks at the same time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import grid_kind
from attn_mlir.backends.gpu.prepared import PREPARED, describe
from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia.chunk_steps import SOLVE, ChunkSteps, shape_of_tile, with_inner
from attn_mlir.backends.nvidia.passes.float32_products import PIECES
from attn_mlir.backends.nvidia.passes.number_rows import move_rows
from attn_mlir.backends.nvidia.tile_pieces import cut_tile, product_of_pieces
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile import build
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.mlir import arith, func, ir, memref, scf
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker
from attn_mlir.passes.tiling.scalars import constant_float, constant_index

_STEP = 32
"""Rows and columns of tiles that the emitter "scans" knows are multiples of it."""
INVERSE = "nvidia.inverse"
"""A unit attribute of a `tile.solve_unit` whose right side is the identity."""
ONCE = "nvidia.once"
"""A unit attribute of a loop that has one iteration."""


@dataclass(frozen=True)
class PrepareChunks(Pass):
    """Cuts kernels of delta rules over 16-bit tensors in two: the first makes, for all chunks at the same time, the tiles that need
    matrix products, or the decays of channels, and no state, among them the inverses of triangles, and numbers of rows; the second one
    scans, and loads them.

    (I + A) U = R is U = T R with T = (I + A)^-1, so that R alone waits for the state: T is stored, as two pieces of bf16, and the system
    becomes three products. Tiles of a chunk have one row for each position, so they are stored as tensors [B, H, T, columns], of whole
    chunks, which `gpu.prepared` of the second kernel tells the host of. Programs of the first kernel have `chunks` chunks each. Kernels
    over packed sequences stay as they are, as do those of other types, of sizes that are no multiples of 32, and of segments that have
    no whole number of such programs.
    """

    name = "nvidia-prepare-chunks"
    chunks: int = 1

    def run(self, module: ir.Operation) -> bool:
        if self.chunks < 1:
            module.location.emit_error(f"{self.name}: `chunks` must be positive, got {self.chunks}")
            return False
        for function in find_all(module, "func.func"):
            if (split := _Split.of(function, self.chunks)) is not None:
                split.build()
        return True


def _pieces(function: ir.Operation) -> int:
    return ir.IntegerAttr(function.attributes[PIECES]).value if PIECES in function.attributes else 0


class _Split(ChunkSteps):
    """One kernel that becomes two."""

    @staticmethod
    def of(function: ir.Operation, chunks: int) -> "_Split | None":
        """None for kernels that stay as they are."""
        if "tile.kernel" not in function.attributes or grid_kind(function) != "chunks" or _pieces(function) != 2:
            return None
        facts = ir.DictAttr(function.attributes["tile.kernel"])
        loops = [op for op in operations(body(function)) if op.name == "scf.for"]
        if "sequences" in facts or len(loops) != 1 or not find_all(loops[0], SOLVE):
            return None
        sizes = [size for op in operations(body(loops[0])) if op.name in (*DOTS, "tile.load") for size in shape_of_tile(op.results[0])]
        if any(size % _STEP for size in sizes):
            return None
        made = _Split(function, loops[0], chunks)
        if not made.crossing or made.segment % (made.size * chunks):
            return None
        needed = made.needed()
        for op in [op for op in made.steps if op in needed and op.name == "tile.map" and len(list(op.operands)) == 2]:
            move_rows(op, read=True)
        return _Split(function, loops[0], chunks)

    def __init__(self, function: ir.Operation, loop: ir.Operation, chunks: int) -> None:
        self.function, self.chunks = function, chunks
        self.facts = ir.DictAttr(function.attributes["tile.kernel"])
        self.segment = ir.IntegerAttr(self.facts["segment"]).value if "segment" in self.facts else 0
        """Positions of a segment, 0 where sequences are whole."""
        results = len(list(ir.ArrayAttr(self.facts["outputs"])))
        arguments = list(body(function).arguments)
        self.inputs, self.outputs = arguments[: len(arguments) - results], arguments[len(arguments) - results :]
        over, size = (ir.IntegerAttr(self.facts[name]).value for name in ("over", "block_q"))
        super().__init__(loop, self.inputs[over], size)

    # ---- both kernels

    def build(self) -> None:
        """Inserts both before the kernel, and erases it."""
        name = ir.StringAttr(self.function.attributes["sym_name"]).value
        element, types = ir.BF16Type.get(self.function.context), list[ir.Type]()
        with self.function.location:
            for value, inverse in self.crossing:
                type_ = ir.RankedTensorType(value.type)
                types += [_memory(type_, element if inverse else type_.element_type)] * (2 if inverse else 1)
            self._first(f"{name}_chunks", types)
            self._second(name, types)
        self.function.erase()

    def _lengths(self) -> list[int]:
        """How many numbers a chunk has in each tensor, 0 where it has rows."""
        shapes = [shape_of_tile(value) for value, inverse in self.crossing for _ in range(2 if inverse else 1)]
        return [0 if len(shape) == 2 else shape[0] for shape in shapes]

    def _function(self, name: str, inputs: list[ir.Value], outputs: list[ir.Type]) -> tuple[ir.Operation, ir.Block]:
        """With arguments as `inputs`, and `outputs`."""
        types = [*(value.type for value in inputs), *outputs]
        with ir.InsertionPoint(self.function):
            made = func.FuncOp(name, ir.FunctionType.get(types, []), loc=self.function.location)
        for each in self.function.attributes:
            if each not in ("sym_name", "function_type"):
                made.operation.attributes[each] = self.function.attributes[each]
        locations = [argument.location for argument in inputs]
        locations += [self.function.location] * (len(types) - len(locations))
        return made.operation, ir.Block.create_at_start(made.operation.regions[0], types, locations)

    def _read(self) -> list[int]:
        """The inputs that the first kernel reads: the others, states among them, may not be there yet when it runs."""
        values = [*(value for value, _ in self.crossing), *list(self.loop.operands)[:3], *self.place()]
        wanted = [made for value in values if (made := maker(value)) is not None]
        found, seen = {ir.IntegerAttr(self.facts["over"]).value}, set[ir.Operation]()
        while wanted:
            op = wanted.pop()
            if op in seen or op == self.loop:
                continue
            seen.add(op)
            for value in [value for each in with_inner(op) for value in each.operands]:
                if value in self.inputs:
                    found.add(self.inputs.index(value))
                elif (made := maker(value)) is not None:
                    wanted.append(made)
        return sorted(found)

    def _first(self, name: str, types: list[ir.Type]) -> None:
        inputs = [self.inputs[number] for number in self._read()]
        function, block = self._function(name, inputs, types)
        i64, over = ir.IntegerType.get_signless(64), inputs.index(self.inputs[ir.IntegerAttr(self.facts["over"]).value])
        facts = {each.name: each.attr for each in self.facts if each.name not in ("outputs", "disjoint")}
        facts |= {"outputs": ir.ArrayAttr.get([ir.StringAttr.get("store")] * len(types)), "blocks": ir.IntegerAttr.get(i64, 1)}
        facts |= {"disjoint": ir.ArrayAttr.get([ir.ArrayAttr.get([])] * len(types))}
        facts |= {"segment": ir.IntegerAttr.get(i64, self.size * self.chunks), "over": ir.IntegerAttr.get(i64, over)}
        function.attributes["tile.kernel"] = ir.DictAttr.get(facts)
        mapping: dict[ir.Value, ir.Value] = dict(zip(inputs, block.arguments, strict=False))
        with ir.InsertionPoint(block):
            copier, each = _Copier(mapping, block), constant_index(self.chunks)
            length = memref.DimOp(block.arguments[over], constant_index(2)).result
            programs = arith.CeilDivSIOp(length, constant_index(self.size * self.chunks)).result
            number = build.program_id(2)
            batch, part = arith.DivSIOp(number, programs).result, arith.RemSIOp(number, programs).result
            if self.segment:  # a segment has whole chunks, but for the last one
                parts, segments = constant_index(self.segment // (self.size * self.chunks)), constant_index(self.segment)
                count = arith.MulIOp(batch, arith.CeilDivSIOp(length, segments).result).result
                batch, part = arith.AddIOp(count, arith.DivSIOp(part, parts).result).result, arith.RemSIOp(part, parts).result
            for op in find_all(self.function, "tile.program_id"):
                if ir.IntegerAttr(op.attributes["axis"]).value == 2:
                    mapping[op.results[0]] = batch
            low, high, step = (copier.value(value) for value in list(self.loop.operands)[:3])
            trips = arith.CeilDivSIOp(arith.SubIOp(high, low).result, step).result
            first = arith.MulIOp(part, each).result
            last = arith.MinSIOp(arith.AddIOp(first, each).result, trips).result
            begin, end = (arith.AddIOp(low, arith.MulIOp(x, step).result).result for x in (first, last))
            loop = scf.ForOp(begin, end, step)
            if self.chunks == 1:
                loop.operation.attributes[ONCE] = ir.UnitAttr.get()
            mapping[body(self.loop).arguments[0]] = loop.induction_variable
            func.ReturnOp([])
        with ir.InsertionPoint(loop.body):
            inside = _Copier(mapping, loop.body, copier, loop.operation)
            outputs = iter(list(block.arguments)[len(inputs) :])
            targets = {each: [next(outputs) for _ in range(2 if each[1] else 1)] for each in self.crossing}
            place = [inside.value(value) for value in self.place()]
            needed = self.closure(value.owner.operation for value, _ in self.crossing)
            for op in sorted((op for op in self.steps if op in needed), key=self.rank()):
                if op.results:
                    inside.value(op.results[0])
                for value, inverse in [each for each in self.crossing if each[0].owner.operation == op]:
                    tile = mapping[value]
                    parts = self._inverse(tile, self._upper(value)) if inverse else [tile]
                    for part, target in zip(parts, targets[value, inverse], strict=True):
                        b, h, row, _ = place
                        count = constant_index(shape_of_tile(part)[0])
                        row = row if len(shape_of_tile(part)) == 2 else self._first_number(row, count)
                        build.store(part, target, b, h, row, count)
            scf.YieldOp([])

    def _first_number(self, row: ir.Value, count: ir.Value) -> ir.Value:
        """Where a chunk's numbers begin of which there are so many."""
        return arith.MulIOp(arith.DivSIOp(row, constant_index(self.size)).result, count).result

    def _load(self, value: ir.Value, source: ir.Value, place: Sequence[ir.Value]) -> ir.Value:
        """What was stored of a tile; numbers of a chunk are read one by one, as decays are."""
        (b, h, row, _), length = place, constant_index(shape_of_tile(value)[0])
        if len(shape_of_tile(value)) == 2:
            return build.load(source, b, h, row, length, self.size)
        first = self._first_number(row, length)

        def number(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            return [memref.LoadOp(source, [b, h, arith.AddIOp(first, i).result]).result], []

        return build.map_([length], [value.type], [], [], number)[0][0]

    def _upper(self, value: ir.Value) -> bool:
        return next(flag(op, "upper") for op in self.steps if op.name == SOLVE and op.operands[0] == value)

    def _inverse(self, triangle: ir.Value, upper: bool) -> list[ir.Value]:
        """Two pieces of (I + A)^-1."""
        score = ir.RankedTensorType(triangle.type).element_type

        def one(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            same = arith.CmpIOp(arith.CmpIPredicate.eq, i, j).result
            return [arith.SelectOp(same, constant_float(score, 1.0), constant_float(score, 0.0)).result], []

        extents = [constant_index(self.size)] * 2
        identity = build.map_(extents, [triangle.type], [], [], one)[0][0]
        inverse = build.solve_unit(triangle, identity, upper)
        inverse.owner.operation.attributes[INVERSE] = ir.UnitAttr.get()
        return cut_tile(inverse)

    def _second(self, name: str, types: list[ir.Type]) -> None:
        function, block = self._function(f"{name}_scan", self.inputs, [*types, *(value.type for value in self.outputs)])
        function.attributes[PREPARED] = describe(f"{name}_chunks", self._read(), types, self._lengths())
        arguments, first = list(block.arguments), len(self.inputs)
        tensors = iter(arguments[first : first + len(types)])
        mapping: dict[ir.Value, ir.Value] = dict(zip(self.inputs, arguments[:first], strict=True))
        mapping.update(zip(self.outputs, arguments[first + len(types) :], strict=True))
        for op in operations(body(self.function)):
            with ir.InsertionPoint(block), op.location:
                if op != self.loop:
                    clone_op(op, mapping)
                    continue
                operands = [mapping.get(value, value) for value in op.operands]
                loop = scf.ForOp(*operands[:3], operands[3:])
                mapping.update(zip(op.results, loop.results, strict=True))
                mapping.update(zip(body(op).arguments, loop.body.arguments, strict=True))
                with ir.InsertionPoint(loop.body):
                    self._scan(mapping, tensors)
        self.function.attributes["sym_name"] = ir.StringAttr.get(f"{name}_before")
        function.attributes["sym_name"] = ir.StringAttr.get(name)

    def _scan(self, mapping: dict[ir.Value, ir.Value], tensors: Iterator[ir.Value]) -> None:
        """A chunk: first what it makes without the state, so that rows have their numbers together, then all else."""
        needed = self.needed()
        place: list[ir.Value] = []
        loaded: dict[ir.Value, list[ir.Value]] = {}
        for op in [*(op for op in self.steps if op not in self.dependent), *(op for op in self.steps if op in self.dependent)]:
            if op.name == "scf.yield":
                scf.YieldOp([mapping.get(value, value) for value in op.operands])
                return
            if op not in needed:
                continue
            if not place and all(value in mapping for value in self.place()):
                place = [mapping.get(value, value) for value in self.place()]
                for value, inverse in self.crossing:
                    loaded[value] = [self._load(value, next(tensors), place) for _ in range(2 if inverse else 1)]
                    if not inverse:
                        mapping[value] = loaded[value][0]
            if op.name == SOLVE:
                mapping[op.results[0]] = product_of_pieces(loaded[op.operands[0]], mapping[op.operands[1]])
            else:
                clone_op(op, mapping)


def _memory(tile: ir.RankedTensorType, element: ir.Type) -> ir.Type:
    """Of tiles: a row for each position; of numbers of chunks: one chunk after the other."""
    dynamic = ir.ShapedType.get_dynamic_size()
    layout = ir.StridedLayoutAttr.get(0, [ir.ShapedType.get_dynamic_stride_or_offset()] * (tile.rank + 2))
    return ir.MemRefType.get([dynamic] * 3 + list(tile.shape)[1:], element, layout)


class _Copier:
    """Copies ops into a block, each together with what it needs, in that order."""

    def __init__(
        self, mapping: dict[ir.Value, ir.Value], block: ir.Block, outer: "_Copier | None" = None, loop: ir.Operation | None = None
    ) -> None:
        self.mapping, self.block, self.outer, self.loop = mapping, block, outer, loop

    def value(self, value: ir.Value) -> ir.Value:
        """The copy of a value."""
        if value in self.mapping:
            return self.mapping[value]
        op = value.owner.operation
        if self.outer is not None and op.parent.name == "func.func":
            with ir.InsertionPoint(self.loop):
                return self.outer.value(value)
        inside = {result for each in with_inner(op) for result in each.results}
        arguments = {a for each in with_inner(op) for region in each.regions for block in region.blocks for a in block.arguments}
        for each in with_inner(op):
            for operand in each.operands:
                if operand not in inside and operand not in arguments:
                    self.value(operand)
        with op.location:
            clone_op(op, self.mapping)
        return self.mapping[value]
