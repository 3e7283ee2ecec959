"""The CPU schedule: query rows lie along vector lanes, and tiles in per-thread buffers.

Every tile with query rows is stored transposed, one vector of `lanes` rows per column, so that row reductions are
elementwise and keys and values are read in place, one broadcast element at a time. Tiles of keys and values stay in
memory when they can be read there (by a single query also those of 16 bits), and are converted into a buffer otherwise.
In a kernel of pairs the roles are exchanged: keys lie along the lanes, and queries stay in memory. Where the machine multiplies pairs
of bf16, operands are kept as pairs along the summed dimension ("lane_pairs", "row_pairs"; "memory_pairs" both as they are and in pairs).
What lanes read of captured tensors lies column by column ("window"), or by diagonals ("band").
Where it has matrix tiles, products are marked `tiles`, and values lie column by column ("column_pairs", "memory_column_pairs").
Rows in several pages are first copied into a buffer of their own ("rows_buffer"); those in one page stay where they are.
"""

from dataclasses import dataclass, field

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.kernel import score_type
from attn_mlir.backends.cpu.lowering.pages import ROWS
from attn_mlir.backends.cpu.lowering.windows import kept_type
from attn_mlir.backends.cpu.passes.row_schedule import is_row_major, schedule_rows
from attn_mlir.backends.cpu.target import WITHOUT_TILES, host
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_PRODUCTS = (*DOTS, "tile.accumulate")
_OF_CAPTURES = {"tile.load_window": "window", "tile.band": "band"}
LOADS = ("tile.load", "tile.load_pages")


@dataclass
class _Buffers:
    """Numbers buffers and records how many elements each needs; one per nesting of loops can be reused by the next."""

    pairs: bool
    tiles: bool
    """Whether products use matrix tiles of pairs."""
    single: bool
    """Whether a block is one row, whose products widen 16 bits as they read them."""
    score: ir.Type
    sizes: list[int] = field(default_factory=list)
    used: int = 0

    def take(self, elements: int) -> int:
        if self.used == len(self.sizes):
            self.sizes.append(0)
        self.sizes[self.used] = max(self.sizes[self.used], elements)
        self.used += 1
        return self.used - 1


def schedule(kernel: ir.Operation) -> bool:
    """Annotates a tiled kernel; returns False after an error."""
    if is_row_major(kernel):
        return schedule_rows(kernel)
    sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
    lanes, keys = (ir.IntegerAttr(sizes[name]).value for name in ("block_q", "block_kv"))
    if "grid" in sizes and ir.StringAttr(sizes["grid"]).value == "pairs":
        keys = max(keys, lanes)  # the keys in the lanes have rows, too, which sums over keys read
    with kernel.context:
        pairs = _multiplies_pairs(kernel, lanes)
        without = _why_no_tiles(kernel, lanes, keys, pairs) if host().tiles and find_all(kernel, *_PRODUCTS) else ""
        single = lanes == 1 and not find_all(kernel, "tile.accumulate")
        buffers = _Buffers(pairs, host().tiles and pairs and not without, single, score_type(kernel))
        if without:
            kernel.attributes[WITHOUT_TILES] = ir.StringAttr.get(without)
    homes: dict[ir.Value, int] = {}
    if not _place_block(kernel.regions[0].blocks[0], lanes, keys, buffers, homes):
        return False
    if buffers.tiles:
        for product in find_all(kernel, *_PRODUCTS):
            product.attributes["tiles"] = ir.UnitAttr.get(kernel.context)
    i64 = ir.IntegerType.get_signless(64, kernel.context)
    kernel.attributes["tile.buffers"] = ir.ArrayAttr.get([ir.IntegerAttr.get(i64, size) for size in buffers.sizes], kernel.context)
    kernel.attributes["tile.target"] = ir.StringAttr.get("cpu", kernel.context)
    return True


def _place_block(block: ir.Block, lanes: int, keys: int, buffers: _Buffers, homes: dict[ir.Value, int]) -> bool:
    for view in block.operations:
        op = view.operation
        if op.name in ("scf.for", "scf.if"):
            if not _place_nested(op, lanes, keys, buffers, homes):
                return False
            continue
        if op.name in DOTS[1:]:
            if any(use.owner.operation.block == block and use.owner.operation != op for use in op.operands[0].uses):
                op.location.emit_error("tile-schedule: an accumulator is updated in place, but its old value is used again")
                return False
            homes[op.results[0]] = homes[op.operands[0]]
            _set_layout(op, ["lanes"], [homes[op.results[0]]])
            continue
        if op.name == "tile.add_band":
            _set_layout(op, [], [buffers.take(3 * lanes + keys)])
        tiles = [result for result in op.results if _is_tile(result)]
        if not tiles:
            continue
        layouts, numbers = [], []
        for tile in tiles:
            layout = _OF_CAPTURES[op.name] if op.name in _OF_CAPTURES else _layout(op, tile, buffers)
            number = -1 if layout == "memory" else _reusable(op, homes, numbers) if op.name == "tile.map" else None
            if number is None:
                number = buffers.take(_elements(tile, layout, lanes, keys) * _words(tile, layout, buffers.score))
            homes[tile] = number
            layouts.append(layout)
            numbers.append(number)
        _set_layout(op, layouts, numbers)
        if layouts[0].endswith("column_pairs"):
            op.attributes["width"] = ir.IntegerAttr.get(_i64(op), _pair_width(keys))
        if op.name == "tile.load_pages":
            op.attributes[ROWS] = ir.IntegerAttr.get(_i64(op), buffers.take(_raw_elements(op, keys, buffers.score)))
    return True


def _raw_elements(op: ir.Operation, keys: int, score: ir.Type) -> int:
    """The scores that as many rows take as a block has, as they lie in memory."""
    type_ = ir.RankedTensorType(op.results[0].type)
    rows = keys if type_.is_dynamic_dim(0) else type_.shape[0]
    return -(-rows * type_.shape[1] * emit.bytes_of(type_.element_type) // emit.bytes_of(score))


def _i64(op: ir.Operation) -> ir.Type:
    return ir.IntegerType.get_signless(64, op.context)


def _place_nested(op: ir.Operation, lanes: int, keys: int, buffers: _Buffers, homes: dict[ir.Value, int]) -> bool:
    used = buffers.used
    for region in op.regions:
        body = region.blocks[0] if len(region.blocks) else None
        if body is None:
            continue
        if op.name == "scf.for":
            carried = [homes[initial] for initial in list(op.operands)[3:] if initial in homes]
            if len(carried) != len(set(carried)):
                op.location.emit_error("tile-schedule: two carried tiles start from one; each is updated in place and needs its own")
                return False
            for argument, initial in zip(list(body.arguments)[1:], list(op.operands)[3:], strict=True):
                if initial in homes:
                    homes[argument] = homes[initial]
        if not _place_block(body, lanes, keys, buffers, homes):
            return False
        yielded = list(body.operations[-1].operation.operands)
        for result, value in zip(op.results, yielded, strict=True):
            if not _is_tile(result):
                continue
            if homes.setdefault(result, homes[value]) != homes[value]:
                op.location.emit_error("tile-schedule: a carried tile must be updated in place on every path")
                return False
        if op.name == "scf.for":
            for argument, value in zip(list(body.arguments)[1:], yielded, strict=True):
                if _is_tile(argument) and homes[argument] != homes[value]:
                    op.location.emit_error("tile-schedule: a carried tile must be updated in place in the loop")
                    return False
        buffers.used = used
    return True


def _is_tile(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and value.type.rank == 2


def _multiplies_pairs(kernel: ir.Operation, lanes: int) -> bool:
    """True when all products can use the instruction that multiplies pairs of bf16 and accumulates in f32.

    It needs an even head dimension (whole vectors of it for sums in memory), whole vectors of lanes, and rows straight from memory.
    """
    products = find_all(kernel, *_PRODUCTS)
    if "avx512_bf16" not in host().features or lanes % 16 or not products:
        return False
    for product in products:
        left, right = list(product.operands)[:2] if product.name == "tile.accumulate" else list(product.operands)[-2:]
        source = right.owner.operation if not isinstance(right.owner, ir.Block) else None
        if not isinstance(ir.RankedTensorType(left.type).element_type, ir.BF16Type) or source is None or source.name not in LOADS:
            return False
        if product.name == "tile.dot" and ir.RankedTensorType(left.type).shape[1] % 2:
            return False
        if product.name == "tile.accumulate" and ir.RankedTensorType(right.type).shape[1] % 16:
            return False
        if not _only_products(left) or not _only_products(right):
            return False
    return True


def _why_no_tiles(kernel: ir.Operation, lanes: int, keys: int, pairs: bool) -> str:
    """Why products can't use matrix tiles: these are whole ones of `pairs` of bf16, whose factors lie in one way. "" where they can."""
    elements = {str(ir.RankedTensorType(list(op.operands)[-1].type).element_type) for op in find_all(kernel, *DOTS)}
    if other := sorted(elements - {"bf16"}):
        return f"matrix tiles multiply bf16, not {other[0]}"
    summed = {ir.RankedTensorType(op.operands[0].type).shape[1] for op in find_all(kernel, "tile.dot")}
    made = {ir.RankedTensorType(op.operands[0].type).shape[1] for op in find_all(kernel, *DOTS[1:])}
    for name, sizes, unit in (("of which a product sums up", summed, 32), ("of a sum", made, 16)):
        if odd := [size for size in sorted(sizes) if size % unit]:
            return f"matrix tiles take columns in whole {unit}s: there are {odd[0]} {name}"
    if keys % 32 or lanes % 16:
        return f"matrix tiles take 32 keys and 16 rows: blocks have {keys} and {lanes}"
    if not pairs:
        return "matrix tiles take factors as they lie in memory: some are computed, or have other uses"
    in_memory = [list(op.operands)[1] for op in find_all(kernel, "tile.accumulate")]
    if (in_memory and lanes % 32) or any(list(op.operands)[-1] in in_memory for op in find_all(kernel, *DOTS[1:])):
        return "matrix tiles need the factors of sums over keys and of those over queries in different orders"
    return ""


def _pair_width(keys: int) -> int:
    return -(-keys // 32) * 16


def _only_products(tile: ir.Value) -> bool:
    return all(use.owner.operation.name in _PRODUCTS for use in tile.uses)


def _layout(op: ir.Operation, tile: ir.Value, buffers: _Buffers) -> str:
    type_ = ir.RankedTensorType(tile.type)
    pairs = buffers.pairs and isinstance(type_.element_type, ir.BF16Type) and _only_products(tile)
    if not type_.is_dynamic_dim(0):
        return "lane_pairs" if pairs and any(True for _ in tile.uses) else "lanes"
    if pairs:
        transposed = {use.owner.operation.name == "tile.dot" for use in tile.uses}
        by_columns = buffers.tiles and not any(use.owner.operation.name == "tile.accumulate" for use in tile.uses)
        if transposed == {False}:
            return "column_pairs" if by_columns else "row_pairs"
        return ("memory_column_pairs" if by_columns else "memory_pairs") if len(transposed) == 2 else "memory"
    as_it_lies = op.name in LOADS and type_.element_type == ir.MemRefType(op.operands[0].type).element_type
    in_place = type_.element_type == buffers.score or (buffers.single and emit.bytes_of(type_.element_type) == 2)
    return "memory" if as_it_lies and in_place and _only_products(tile) else "rows"


def _elements(tile: ir.Value, layout: str, lanes: int, keys: int) -> int:
    type_ = ir.RankedTensorType(tile.type)
    if layout == "band":
        return 2 * lanes + keys
    if layout.endswith("column_pairs"):
        return _pair_width(keys) * type_.shape[1]
    if layout in ("rows", "row_pairs", "memory_pairs"):
        return (keys + keys % 2) * type_.shape[1]
    return lanes * (keys + keys % 2 if type_.is_dynamic_dim(1) else type_.shape[1])


def _words(tile: ir.Value, layout: str, score: ir.Type) -> int:
    """How many scores an element of a buffer takes."""
    if layout not in _OF_CAPTURES.values():
        return 1
    element = kept_type(ir.RankedTensorType(tile.type).element_type, score)
    return -(-emit.bytes_of(element) // emit.bytes_of(score))


def _reusable(op: ir.Operation, homes: dict[ir.Value, int], taken: list[int]) -> int | None:
    """The buffer of a tile that this map reads, element by element, and nothing reads after it."""
    body = op.regions[0].blocks[0]
    arguments = list(body.arguments)
    elsewhere = {inner.operands[0] for inner in walk(op) if inner.name == "tensor.extract" and list(inner.operands)[1:] != arguments}
    for inner in walk(op):
        if inner.name != "tensor.extract" or list(inner.operands)[1:] != arguments:
            continue
        source = inner.operands[0]
        if source in elsewhere:  # as partners of an element are, which may be changed already
            continue
        home = homes.get(source, -1)
        same_shape = len(op.results) > 0 and source.type.rank == 2 and _shape(source) == _shape(op.results[0])
        local = not isinstance(source.owner, ir.Block) and source.owner.operation.block == op.block
        if home < 0 or home in taken or not same_shape or not local or not _is_own(source):
            continue
        if all(_inside(use.owner.operation, op) for use in source.uses):
            return home
    return None


def _is_own(source: ir.Value) -> bool:
    """False for accumulators, whose buffer outlives the block."""
    return source.owner.operation.name in ("tile.dot", "tile.map", *LOADS)


def _shape(value: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(value.type).shape)


def _inside(op: ir.Operation, ancestor: ir.Operation) -> bool:
    while op is not None:
        if op == ancestor:
            return True
        op = op.parent
    return False


def _set_layout(op: ir.Operation, layouts: list[str], buffers: list[int]) -> None:
    i64 = ir.IntegerType.get_signless(64, op.context)
    op.attributes["layout"] = ir.ArrayAttr.get([ir.StringAttr.get(name, op.context) for name in layouts], op.context)
    op.attributes["buffer"] = ir.ArrayAttr.get([ir.IntegerAttr.get(i64, number) for number in buffers], op.context)
