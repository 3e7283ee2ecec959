"""Packs heads of queries that share keys into blocks of rows, so that a block has fewer positions and sees fewer keys of a window."""

from collections.abc import Hashable
from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import constant
from attn_mlir.backends.nvidia.forming.facts import chosen
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker, walk

_ROWS = 64
"""Of a warpgroup."""
_PLACES = {"warp.copy_async": (0, 2, 3), "warp.store": (1, 3, 4)}
"""Of ops that move rows of tensors: which operands are the tensor, the head, and the first row."""
_OTHERS = ("warp.atomic_add", "warp.store_async", "warp.add_async", "warp.load", "warp.load_async", "warp.copy_rows_async", "memref.store")


@dataclass(frozen=True)
class PackRows(Pass):
    """Lets rows of a block be those of `heads` neighbouring heads at each of its positions: row r is of head r mod `heads` and position
    r / `heads`. Tensors that have a row for each of a block's are seen by `warp.rows_of_heads`, so that their tiles are copied as before;
    what is computed of a row has its position instead. A tile of 192 rows then has 24 positions of 8 heads, whose windows of 128 keys are
    151 keys, not 319, and reads them once for all 8.

    Kernels are right where `heads` divides the heads of queries for each head of keys: launchers check it. Without the option
    `warp.schedule` says how many heads are packed (`pack`).

    A kernel stays as it is, with the reason in `warp.refused`, where no heads are packed, its tiles are not numbered as
    `warp-assign-layouts` does, or something depends on the head of a query other than which keys it sees, and numbers of rows that are
    loaded at it, as sinks are.
    """

    name = "warp-pack-rows"
    heads: int = 0

    def run(self, module: ir.Operation) -> bool:
        if self.heads < 0:
            module.location.emit_error(f"{self.name}: `heads` must not be negative, got {self.heads}")
            return False
        change_kernels(module, self.name, self._pack)
        return True

    def _pack(self, kernel: ir.Operation) -> None:
        heads = chosen(kernel, "pack", self.heads, 1)
        if heads == 1:
            raise Refused("the schedule packs no heads")
        roles = find_all(kernel, "warp.role")
        if len(roles) != 1 or find_all(kernel, *_OTHERS):
            raise Refused("a kernel of several roles, or one that reads or adds rows by threads, stays")
        size = number(roles[0], "warpgroups") * _ROWS
        if size % heads or _ROWS % heads:
            raise Refused(f"{heads} heads are no whole positions of the {_ROWS} rows of a warpgroup")
        tiles = _Tiles.of(roles[0], size)
        loads = _loads_at(tiles.head)
        moves = [op for op in find_all(kernel, *_PLACES) if _operand(op, 2) in (tiles.begin.results[0], *tiles.firsts())]
        _check(tiles, moves, loads)
        _change(kernel, tiles, moves, (heads, size))
        _load_by_row(tiles, loads, heads)
        _hold_rows(tiles, heads)


def _operand(op: ir.Operation, which: int) -> ir.Value:
    return op.operands[_PLACES[op.name][which]]


@dataclass(frozen=True)
class _Tiles:
    """How tiles are numbered: how many blocks of rows there are (`counted`), a tile's head of queries, and its first row (`begin`)."""

    counted: ir.Operation
    head: ir.Operation
    begin: ir.Operation

    @staticmethod
    def of(role: ir.Operation, size: int) -> "_Tiles":
        """Those of a role. Raises Refused."""
        for loop in find_all(role, "scf.for"):
            if maker(loop.operands[0], "warp.block_id") is None:
                continue
            uses = {use.owner.operation.name: use.owner.operation for use in loop.regions[0].blocks[0].arguments[0].uses}
            block, pair = uses.get("arith.remsi"), uses.get("arith.divsi")
            if block is None or pair is None:
                break
            counted = maker(block.operands[1], "arith.ceildivsi")
            heads = [use.owner.operation for use in pair.results[0].uses if use.owner.operation.name == "arith.remsi"]
            begins = [use.owner.operation for use in block.results[0].uses]
            if counted is None or constant(counted.operands[1]) != size or len(heads) != 1 or len(begins) != 1:
                break
            if begins[0].name == "arith.muli" and constant(begins[0].operands[1]) == size:
                return _Tiles(counted, heads[0], begins[0])
        raise Refused("tiles are not numbered by blocks of rows, then heads")

    def firsts(self) -> list[ir.Value]:
        """The first rows of warpgroups, with which stores begin."""
        adds = [use.owner.operation for use in self.begin.results[0].uses if use.owner.operation.name == "arith.addi"]
        return [op.results[0] for op in adds if all(use.owner.operation.name == "warp.store" for use in op.results[0].uses)]


def _loads_at(head: ir.Operation) -> list[ir.Operation]:
    """Numbers of heads in global memory that only maps over rows use, such as sinks."""
    loads = [use.owner.operation for use in head.results[0].uses if use.owner.operation.name == "memref.load"]
    return [op for op in loads if _map_of(op) is None and all(_map_of(use.owner.operation) is not None for use in op.results[0].uses)]


def _map_of(op: ir.Operation) -> ir.Operation | None:
    """The map that an op stands in."""
    above = op.parent.operation if op.parent is not None else None
    return above if above is not None and above.name == "warp.map" else None


def _check(tiles: _Tiles, moves: list[ir.Operation], loads: list[ir.Operation]) -> None:
    """Raises Refused where a head of queries is used for more than rows of tensors, numbers of rows, and for the head of keys."""
    if {op.name for op in moves} != set(_PLACES):
        raise Refused("no rows of a block are copied or stored")
    for use in tiles.head.results[0].uses:
        op = use.owner.operation
        in_map = op.name == "memref.load" and _map_of(op) is not None
        if op not in moves and op not in loads and not in_map and op.name != "arith.divsi":
            raise Refused(f"'{op.name}' depends on the head of a query")
    if any(_operand(op, 1) != tiles.head.results[0] for op in moves):
        raise Refused("rows of a block are copied or stored elsewhere than at their head")
    if maker(tiles.head.operands[1], "memref.dim") is None:
        raise Refused("tiles are not numbered by blocks of rows, then heads")
    for op in [use.owner.operation for use in tiles.head.results[0].uses]:
        map_ = _map_of(op)
        if map_ is not None and any(_form(value, map_.regions[0].blocks[0].arguments[0], map_) is None for value in op.operands):
            raise Refused("a number of each pair depends on the head of a query")


def _change(kernel: ir.Operation, tiles: _Tiles, moves: list[ir.Operation], sizes: tuple[int, int]) -> None:
    """`sizes`: how many heads are packed, and the rows of a block."""
    heads, size = sizes
    begin, stored = tiles.begin, tiles.firsts()
    views: dict[ir.Value, ir.Value] = {}
    with kernel.location, ir.InsertionPoint.at_block_begin(kernel.regions[0].blocks[0]):
        for op in moves:
            tensor = _operand(op, 0)
            if tensor not in views:
                views[tensor] = build.op("rows_of_heads", [tensor], [tensor.type], heads=heads).result
    with tiles.counted.location, ir.InsertionPoint(tiles.counted):
        tiles.counted.operands[1] = build.index(size // heads)
    # A tile's head is that of a pack.
    of_batch = tiles.head.operands[1]
    count = maker(of_batch, "memref.dim")
    assert count is not None
    with count.location, ir.InsertionPoint.after(count):
        packs = arith.DivUIOp(of_batch, build.index(heads)).result
    of_tiles = [use for use in of_batch.uses if use.owner.operation.name in ("arith.remsi", "arith.divsi", "arith.muli")]
    for use in [(use.owner.operation, use.operand_number) for use in of_tiles]:
        op, place = use
        if op.name == "arith.divsi" and place == 0:
            continue  # heads of queries for each head of keys
        if op.results[0] != packs:
            op.operands[place] = packs
    with tiles.head.location, ir.InsertionPoint.after(tiles.head):
        first_head = arith.MulIOp(tiles.head.results[0], build.index(heads)).result
    for op, place in [(use.owner.operation, use.operand_number) for use in tiles.head.results[0].uses]:
        if op not in moves and op.results[0] != first_head:
            op.operands[place] = first_head
    with begin.location, ir.InsertionPoint.after(begin):
        position = arith.MulIOp(begin.operands[0], build.index(size // heads)).result
        end = arith.AddIOp(position, build.index(size // heads)).result
    for op, place in [(use.owner.operation, use.operand_number) for use in begin.results[0].uses]:
        if op in moves or any(result in stored for result in op.results):
            continue
        if op.name == "arith.addi" and constant(op.operands[1 - place]) == size:
            op.results[0].replace_all_uses_with(end)
            op.erase()
        elif op.name == "arith.addi" and op.parent is not None and op.parent.operation.name == "warp.map":
            with op.location, ir.InsertionPoint(op):
                op.operands[1 - place] = arith.DivUIOp(op.operands[1 - place], build.index(heads)).result
            op.operands[place] = position
        else:
            op.operands[place] = position
    for op in moves:
        op.operands[_PLACES[op.name][0]] = views[_operand(op, 0)]


def _load_by_row(tiles: _Tiles, loads: list[ir.Operation], heads: int) -> None:
    """Loads numbers of heads once a tile, those of the head of each row; loads have the first head of the pack by now."""
    made: dict[tuple[ir.Value, ...], ir.Value] = {}
    for load in [op for op in walk(tiles.head.parent) if op in loads]:
        key = tuple(load.operands)
        if key not in made:
            made[key] = _rows_of(load, heads, _around(load, tiles.head.block))
        for op, place in [(use.owner.operation, use.operand_number) for use in load.results[0].uses]:
            map_ = _map_of(op)
            assert map_ is not None
            with op.location, ir.InsertionPoint(op):
                row = map_.regions[0].blocks[0].arguments[0]
                read = ir.Operation.create("tensor.extract", results=[load.results[0].type], operands=[made[key], row])
                op.operands[place] = read.result
        load.erase()


def _hold_rows(tiles: _Tiles, heads: int) -> None:
    """Loads numbers of rows that maps load at their head, such as log-sum-exps, once a tile."""
    made: dict[Hashable, ir.Value] = {}
    for load in [op for op in walk(tiles.head.parent) if op.name == "memref.load"]:
        map_ = _map_of(load)
        if map_ is None or not any(_is_first(place, heads) for place in list(load.operands)[1:]):
            continue
        row = map_.regions[0].blocks[0].arguments[0]
        key = tuple(_form(value, row, map_) for value in load.operands)
        if key not in made:
            made[key] = _rows_at(load, row, heads, _around(load, tiles.head.block))
        with load.location, ir.InsertionPoint(load):
            read = ir.Operation.create("tensor.extract", results=[load.results[0].type], operands=[made[key], row])
        load.results[0].replace_all_uses_with(read.result)
        load.erase()


def _form(value: ir.Value, row: ir.Value, map_: ir.Operation) -> Hashable:
    """How a number in a map is computed from its row; None where it depends on its column."""
    if value == row:
        return "row"
    block = map_.regions[0].blocks[0]
    if isinstance(value.owner, ir.Block):
        return None if value.owner == block else value
    op = value.owner.operation
    if op.block != block:
        return value
    inner = tuple(_form(operand, row, map_) for operand in op.operands)
    return None if any(each is None for each in inner) else (op.name, str(op.attributes), inner)


def _rows_at(load: ir.Operation, row: ir.Value, heads: int, before: ir.Operation) -> ir.Value:
    """The numbers that a map loads for the rows of a warpgroup."""
    block = load.block

    def copied(value: ir.Value, known: dict[ir.Value, ir.Value]) -> ir.Value:
        if value in known or isinstance(value.owner, ir.Block) or value.owner.operation.block != block:
            return known.get(value, value)
        for operand in value.owner.operation.operands:
            copied(operand, known)
        clone_op(value.owner.operation, known)
        return known[value]

    def body(i: ir.Value) -> list[ir.Value]:
        memory, *places = load.operands
        known = {row: i}
        at = [_of_row(place, i, heads) if _is_first(place, heads) else copied(place, known) for place in places]
        return [ir.Operation.create("memref.load", results=[load.results[0].type], operands=[memory, *at]).result]

    with load.location, ir.InsertionPoint(before):
        type_ = ir.RankedTensorType(build.fragment_type("wgmma", "rows", [_ROWS], load.results[0].type))
        return build.map_([_ROWS], [type_], [""], body)[0]


def _is_first(place: ir.Value, heads: int) -> bool:
    """Whether a number is the first head of a pack."""
    made = maker(place, "arith.muli")
    return made is not None and constant(made.operands[1]) == heads and maker(made.operands[0], "arith.remsi") is not None


def _around(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """The op of a block that an op is, or stands in."""
    return op if op.block == block or op.parent is None else _around(op.parent.operation, block)


def _rows_of(load: ir.Operation, heads: int, before: ir.Operation) -> ir.Value:
    """The numbers of the rows of a warpgroup, which begin with the first head."""
    memory, *places = load.operands
    with load.location, ir.InsertionPoint(before):
        type_ = ir.RankedTensorType(build.fragment_type("wgmma", "rows", [_ROWS], load.results[0].type))

        def body(row: ir.Value) -> list[ir.Value]:
            at = [_of_row(place, row, heads) for place in places]
            return [ir.Operation.create("memref.load", results=[load.results[0].type], operands=[memory, *at]).result]

        return build.map_([_ROWS], [type_], [""], body)[0]


def _of_row(place: ir.Value, row: ir.Value, heads: int) -> ir.Value:
    """The head of a row in place of the first one of a pack."""
    if not _is_first(place, heads):
        return place
    return arith.AddIOp(place, arith.RemUIOp(row, build.index(heads)).result).result
