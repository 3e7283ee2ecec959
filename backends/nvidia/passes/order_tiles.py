"""Hands out tiles in another order: those of a group of heads together, the longest first, in turn from both ends."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming.facts import chosen, draws, wanted
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_MOST = 1 << 30
"""More than there are tiles: a bound that is told, so that printers count in 32 bits."""


@dataclass(frozen=True)
class OrderTiles(Pass):
    """Changes which tile a number of the static tile scheduler stands for; every tile is still taken once.

    Numbers count through groups of `group` heads, whose keys stay in the second level cache meanwhile, in a group block after block from
    the last one on (under a causal mask the longest), and in a block head after head. Without the option `warp.schedule` says how many
    heads make a group, or with 0 that nothing changes; where `reverse` is 0 there, blocks are counted from the first one on.

    Thread block n of N takes numbers n, N + n, ...; lengths fall from number to number, so in every second round of a group, N of its
    numbers from its first on, numbers count from the round's end, if the round is whole: none gets the longest tile of all rounds. Not so
    where the schedule lets thread blocks draw their tiles (`draw` or `order`, see `warp-draw-tiles`), without the option `rounds`.

    A kernel stays as it is, with the reason in `warp.refused`, where its tiles are not handed out as `warp-assign-layouts` does.
    """

    name = "warp-order-tiles"
    group: int = 0
    rounds: bool = False

    def run(self, module: ir.Operation) -> bool:
        if self.group < 0:
            module.location.emit_error(f"{self.name}: `group` must not be negative, got {self.group}")
            return False
        change_kernels(module, self.name, self._order)
        return True

    def _order(self, kernel: ir.Operation) -> None:
        if not self.group and not wanted(kernel, "group"):
            raise Refused("the schedule has no groups of heads")
        heads = chosen(kernel, "group", self.group, thresholds.WARP_HEADS)
        reverse, drawn = wanted(kernel, "reverse"), draws(kernel) and not self.rounds
        found = [_read(loop) for loop in find_all(kernel, "scf.for") if maker(loop.operands[0], "warp.block_id") is not None]
        if not found:
            raise Refused("no loop takes tiles from its thread block's number on")
        for loop, block, pair in found:
            _renumber(loop, block, pair, heads, (reverse, drawn))


def _read(loop: ir.Operation) -> tuple[ir.Operation, ir.Operation, ir.Operation]:
    """The loop over tiles, and what makes the number of a block and of a pair of batch and head of a tile's. Raises Refused."""
    tile = loop.regions[0].blocks[0].arguments[0]
    uses = {use.owner.operation.name: use.owner.operation for use in tile.uses}
    block, pair = uses.get("arith.remsi"), uses.get("arith.divsi")
    if maker(loop.operands[2], "warp.block_count") is None or len(list(tile.uses)) != 2 or block is None or pair is None:
        raise Refused("a tile's number is more than that of its block and its head")
    if block.operands[1] != pair.operands[1]:
        raise Refused("a tile's number is divided by different numbers of blocks")
    return loop, block, pair


def _renumber(loop: ir.Operation, block: ir.Operation, pair: ir.Operation, heads: int, how: tuple[bool, bool]) -> None:
    """`how`: whether the last blocks come first, and whether tiles are drawn."""
    reverse, drawn = how
    body = loop.regions[0].blocks[0]
    tile, blocks, count = body.arguments[0], block.operands[1], loop.operands[2]
    product = maker(loop.operands[1], "arith.muli")
    with loop.location, ir.InsertionPoint(loop):
        tiles = _bounded(loop.operands[1], build.index(_MOST))
        loop.operands[1] = tiles
    with loop.location, ir.InsertionPoint.at_block_begin(body):
        one, two, many = build.index(1), build.index(2), build.index(_MOST)
        size = arith.MulIOp(blocks, build.index(heads)).result
        first = _bounded(arith.MulIOp(arith.DivUIOp(tile, size).result, build.index(heads)).result, many)
        inside = arith.RemUIOp(tile, size).result
        known = product is not None and product.operands[1] == blocks
        pairs = _bounded(product.operands[0] if product is not None and known else arith.DivUIOp(tiles, blocks).result, many)
        width = arith.MaxSIOp(arith.MinSIOp(arith.SubIOp(pairs, first).result, build.index(heads)).result, one).result
        # Rounds of the group whose tiles all exist, every second of them from its end.
        round_ = arith.DivUIOp(inside, count).result
        begin, end = (arith.MulIOp(n, count).result for n in (round_, arith.AddIOp(round_, one).result))
        odd = arith.CmpIOp(arith.CmpIPredicate.ne, arith.RemUIOp(round_, two).result, build.index(0)).result
        whole = arith.CmpIOp(arith.CmpIPredicate.sle, end, arith.MulIOp(width, blocks).result).result
        mirrored = arith.SubIOp(arith.AddIOp(begin, end).result, arith.AddIOp(inside, one).result).result
        number = inside if drawn else _bounded(arith.SelectOp(arith.AndIOp(odd, whole).result, mirrored, inside).result, many)
        last = arith.SubIOp(blocks, one).result
        row = _bounded(arith.DivUIOp(number, width).result, last)
        with block.location:
            placed = arith.SubIOp(last, row).result if reverse else row
        with pair.location:
            own = _bounded(arith.AddIOp(first, arith.RemUIOp(number, width).result).result, many)
    block.results[0].replace_all_uses_with(placed)
    pair.results[0].replace_all_uses_with(own)
    block.erase()
    pair.erase()


def _bounded(value: ir.Value, most: ir.Value) -> ir.Value:
    """The value, which is never negative, and `most` at most."""
    return arith.MaxSIOp(arith.MinSIOp(value, most).result, build.index(0)).result
