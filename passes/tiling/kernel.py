"""Builds the tiled kernel of one `attn.online`."""

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, func, ir, memref, scf
from attn_mlir.passes.regions import block_of, piece, pieces
from attn_mlir.passes.tiling.block import BlockBuilder, Program
from attn_mlir.passes.tiling.scalars import ScalarEmitter, cast_float, clone_scalar, constant_float, constant_index


class KernelBuilder:
    """Turns `func.func @f(tensors...) -> (tensors...)` holding an `attn.online` into a kernel on memrefs."""

    def __init__(self, function: ir.Operation, online: ir.Operation, block_q: int, block_kv: int) -> None:
        self._function = function
        self._online = online
        self._block_q = block_q
        self._block_kv = block_kv
        self._score = _score_type(online)
        self._element = ir.RankedTensorType(online.operands[0].type).element_type
        self._accumulators = ir.IntegerAttr(online.attributes["accumulators"]).value

    def build(self) -> None:
        """Inserts the kernel before the function, under the same name."""
        entry = self._function.regions[0].blocks[0]
        with self._online.location, ir.InsertionPoint(self._function):
            inputs = [_in_memory(argument.type) for argument in entry.arguments]
            outputs = [_in_memory(result.type) for result in self._online.results]
            name = ir.StringAttr(self._function.attributes["sym_name"]).value
            kernel = func.FuncOp(name, ir.FunctionType.get([*inputs, *outputs], []), loc=self._function.location)
            i64 = ir.IntegerType.get_signless(64)
            sizes = {"block_q": ir.IntegerAttr.get(i64, self._block_q), "block_kv": ir.IntegerAttr.get(i64, self._block_kv)}
            kernel.attributes["tile.kernel"] = ir.DictAttr.get(sizes)
            names = [*_argument_names(entry), "o", *[ir.StringAttr(n).value for n in ir.ArrayAttr(self._online.attributes["outputs"])]]
            block = ir.Block.create_at_start(
                kernel.regions[0], [*inputs, *outputs], [ir.Location.name(n, self._online.location) for n in names]
            )
        with self._online.location, ir.InsertionPoint(block):
            outer = ScalarEmitter(dict(zip(entry.arguments, block.arguments, strict=False)))
            self._build_body(outer, list(block.arguments), len(inputs))
            func.ReturnOp([])

    def _build_body(self, outer: ScalarEmitter, arguments: list[ir.Value], inputs: int) -> None:
        for op in list(self._online.block.operations):
            if op.operation == self._online:
                break
            clone = clone_scalar(op.operation, [outer.emit(operand) for operand in op.operation.operands])
            for old, new in zip(op.operation.results, clone.results, strict=True):
                outer.set(old, new)
        q, k, v = (outer.emit(operand) for operand in self._online.operands)
        program = self._program(q, k, v, outer)
        block = BlockBuilder(self._online, program)
        carried = [*self._initial_states(program), *self._initial_accumulators(v)]
        steps = pieces(self._online, "attn.step")
        states = len(carried) - self._accumulators
        for step in steps[:-1]:
            carried[:states] = self._sweep(block, step, carried[:states])
        carried = self._sweep(block, steps[-1], carried)
        self._finalize(program, carried[:states], carried[states:], arguments[inputs:])

    def _program(self, q: ir.Value, k: ir.Value, v: ir.Value, outer: ScalarEmitter) -> Program:
        query_block, h, b = (build.program_id(axis) for axis in range(3))
        one, two, size = constant_index(1), constant_index(2), constant_index(self._block_q)
        q_len, kv_len = memref.DimOp(q, two).result, memref.DimOp(k, two).result
        group = arith.DivSIOp(memref.DimOp(q, one).result, memref.DimOp(k, one).result).result
        begin = arith.MulIOp(query_block, size).result
        end = arith.MinSIOp(arith.AddIOp(begin, size).result, q_len).result
        rows = arith.SubIOp(end, begin).result
        last = arith.SubIOp(q_len, one).result
        kv_head = arith.DivSIOp(h, group).result
        tile = build.load(q, b, h, begin, rows, self._block_q)
        program = Program(
            self._element, self._score, b, h, kv_head, begin, end, rows, last, kv_len, tile, k, v, outer, self._block_q, self._block_kv
        )
        program.query = program.modify(piece(self._online, "attn.query"), tile, size, h, begin, last)
        return program

    def _initial_states(self, program: Program) -> list[ir.Value]:
        init = block_of(pieces(self._online, "attn.init")[0])
        count = len(list(init.operations)[-1].operation.operands)
        if count == 0:
            return []

        def body(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            return program.scalars().inline(init, [program.b, program.h, program.q_idx(i)]), []

        row = ir.RankedTensorType.get([self._block_q], self._score)
        return build.map_([constant_index(self._block_q)], [row] * count, [], [], body)[0]

    def _initial_accumulators(self, v: ir.Value) -> list[ir.Value]:
        zero = constant_float(self._score, 0.0)
        shape = [self._block_q, ir.MemRefType(v.type).shape[3]]
        return [build.fill(zero, shape, number) for number in range(self._accumulators)]

    def _sweep(self, block: BlockBuilder, step: ir.Operation, carried: list[ir.Value]) -> list[ir.Value]:
        """Runs `step` over all keys that the rows can see; returns the carried values after it."""
        program, mask = block.program, piece(self._online, "attn.mask")
        bounds, classes = piece(self._online, "attn.bounds"), piece(self._online, "attn.block_mask")
        zero = constant_index(0)
        if mask is None:
            return self._loop(block, step, zero, program.kv_len, carried, "full")
        if bounds is None:
            return self._loop(block, step, zero, program.kv_len, carried, "partial" if classes is None else "classify")
        limits = program.scalars().inline(block_of(bounds), [program.b, program.h, program.begin, program.end])
        if classes is not None:
            return self._loop(block, step, limits[0], limits[3], carried, "classify")
        for begin, end, kind in zip(limits, limits[1:], ("partial", "full", "partial"), strict=False):
            if not _same(begin, end):
                carried = self._loop(block, step, begin, end, carried, kind)
        return carried

    def _loop(
        self, block: BlockBuilder, step: ir.Operation, begin: ir.Value, end: ir.Value, carried: list[ir.Value], kind: str
    ) -> list[ir.Value]:
        size = constant_index(self._block_kv)
        loop = scf.ForOp(begin, end, size, carried)
        with ir.InsertionPoint(loop.body):
            kv = loop.induction_variable
            count = arith.MinSIOp(size, arith.SubIOp(end, kv).result).result
            scf.YieldOp(self._block(block, step, kv, count, list(loop.inner_iter_args), kind))
        return list(loop.results)

    def _block(
        self, block: BlockBuilder, step: ir.Operation, kv: ir.Value, count: ir.Value, carried: list[ir.Value], kind: str
    ) -> list[ir.Value]:
        if kind != "classify":
            return block.build(step, kv, count, carried, masked=kind == "partial")
        program = block.program
        region = block_of(pieces(self._online, "attn.block_mask")[0])
        end = arith.AddIOp(kv, count).result
        some, every = program.scalars().inline(region, [program.b, program.h, program.begin, program.end, kv, end])

        def partial_or_full() -> list[ir.Value]:
            return _if(
                every,
                carried,
                lambda: block.build(step, kv, count, carried, masked=False),
                lambda: block.build(step, kv, count, carried, masked=True),
            )

        return _if(some, carried, partial_or_full, lambda: carried)

    def _finalize(self, program: Program, states: list[ir.Value], accumulators: list[ir.Value], outputs: list[ir.Value]) -> None:
        region = block_of(pieces(self._online, "attn.finalize")[0])
        results = list(list(region.operations)[-1].operation.operands)
        arguments = list(region.arguments)
        indices, state_arguments = arguments[len(accumulators) : len(accumulators) + 3], arguments[len(accumulators) + 3 :]
        rows, columns = constant_index(self._block_q), constant_index(ir.MemRefType(outputs[0].type).shape[3])

        def scalars(i: ir.Value, j: ir.Value | None) -> ScalarEmitter:
            tiles = dict(zip(state_arguments, states, strict=True))
            if j is not None:
                tiles.update(zip(arguments[: len(accumulators)], accumulators, strict=True))
            emitter = program.reading(tiles, i, j)
            for argument, value in zip(indices, (program.b, program.h, program.q_idx(i)), strict=True):
                emitter.set(argument, value)
            return emitter

        def output(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            return [cast_float(scalars(i, j).emit(results[0]), self._element)], []

        def row_outputs(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            emitter = scalars(i, None)
            return [emitter.emit(value) for value in results[1:]], []

        type_ = ir.RankedTensorType.get([self._block_q, ir.MemRefType(outputs[0].type).shape[3]], self._element)
        tiles, _ = build.map_([rows, columns], [type_], [], [], output)
        build.store(tiles[0], outputs[0], program.b, program.h, program.begin, program.rows)
        if len(results) > 1:
            row = ir.RankedTensorType.get([self._block_q], self._score)
            tiles, _ = build.map_([rows], [row] * (len(results) - 1), [], [], row_outputs)
            for tile, target in zip(tiles, outputs[1:], strict=True):
                build.store(tile, target, program.b, program.h, program.begin, program.rows)


def _if(condition: ir.Value, carried: list[ir.Value], then: object, otherwise: object) -> list[ir.Value]:
    op = scf.IfOp(condition, [value.type for value in carried], has_else=True)
    for block, branch in ((op.then_block, then), (op.else_block, otherwise)):
        with ir.InsertionPoint(block):
            scf.YieldOp(branch())  # type: ignore[operator]
    return list(op.results)


def _same(a: ir.Value, b: ir.Value) -> bool:
    if a == b:
        return True
    owners = [value.owner for value in (a, b)]
    if any(isinstance(owner, ir.Block) or owner.operation.name != "arith.constant" for owner in owners):
        return False
    return owners[0].operation.attributes["value"] == owners[1].operation.attributes["value"]


def _score_type(online: ir.Operation) -> ir.Type:
    """f32 or f64: the type of the states, or of the accumulators where there are none."""
    return block_of(pieces(online, "attn.step")[0]).arguments[0].type


def _in_memory(type_: ir.Type) -> ir.Type:
    """The memref, with any strides, that holds a tensor; other types stay."""
    if not isinstance(type_, ir.RankedTensorType):
        return type_
    if type_.rank == 0:
        return ir.MemRefType.get([], type_.element_type)
    layout = ir.StridedLayoutAttr.get(0, [ir.ShapedType.get_dynamic_stride_or_offset()] * type_.rank)
    return ir.MemRefType.get(type_.shape, type_.element_type, layout=layout)


def _argument_names(entry: ir.Block) -> list[str]:
    """The arguments' names from their locations; q, k, v and their position where there is none."""
    names = []
    for position, argument in enumerate(entry.arguments):
        location = argument.location
        named = isinstance(location, ir.NameLoc)
        names.append(location.name_str if named else ("q", "k", "v")[position] if position < 3 else f"arg{position}")
    return names
