"""Loops over what key lists name: blocks of keys of a block of queries, and blocks of queries of a tile of keys."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.key_lists import KeyLists
from attn_mlir.passes.tiling.frame import branch, loop
from attn_mlir.passes.tiling.scalars import ScalarEmitter, constant_index
from attn_mlir.passes.tiling.work import read

_ROWS = (32, 16)
"""Rows of a block that fill whole vectors of any target."""
Body = Callable[[ir.Value, ir.Value, list[ir.Value], bool], list[ir.Value]]
"""Makes a block from its first position and count, with the mask or without."""


def rows_of(lists: KeyLists, block_q: int) -> int:
    """How many rows a program has: all of one list, of lists of several queries as many as fill vectors."""
    return 1 if lists.queries == 1 else next((rows for rows in _ROWS if rows <= block_q and lists.queries % rows == 0), min(16, block_q))


def keys_of(lists: KeyLists, block_kv: int) -> int:
    """How many keys a block has: so many of the list, or a part of a listed block."""
    return block_kv if lists.names_keys else math.gcd(lists.keys, block_kv)


def rows_in(lists: KeyLists, program: ir.Value, rows: int, length: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The list of a program of `rows` rows, and its rows [begin, end): no program has rows of two lists."""
    per, size = constant_index(-(-lists.queries // rows)), constant_index(lists.queries)
    number = arith.DivSIOp(program, per).result
    first = arith.MulIOp(number, size).result
    begin = arith.AddIOp(first, arith.MulIOp(arith.RemSIOp(program, per).result, constant_index(rows)).result).result
    last = arith.MinSIOp(arith.AddIOp(first, size).result, length).result
    return number, begin, arith.MinSIOp(arith.AddIOp(begin, constant_index(rows)).result, last).result


@dataclass(frozen=True)
class Range:
    """Entries [begin, end) of a list."""

    begin: ir.Value
    end: ir.Value


def range_of(ranges: ir.Value, b: ir.Value, h: ir.Value, heads: ir.Value, number: ir.Value, outer: ScalarEmitter) -> Range:
    """Where a list lies: that of head h of `heads`, several of which may share one."""
    memory = outer.emit(ranges)
    group = arith.DivSIOp(heads, memref.DimOp(memory, constant_index(1)).result).result
    place = [b, arith.DivSIOp(h, group).result, number]
    begin, end = (read(memory, [*place, constant_index(i)]) for i in (0, 1))
    return Range(begin, end)


@dataclass(frozen=True)
class Limits:
    """What the bounds of a mask say of positions: whether a block is asked for at all, and needs no mask. None: nothing is known."""

    bounds: Sequence[ir.Value] | None
    masked: bool

    def apply(self, first: ir.Value, count: ir.Value, carried: list[ir.Value], body: Body) -> list[ir.Value]:
        """The block of `count` positions from `first` on, if there are any that may be present."""
        end = arith.AddIOp(first, count).result

        def compare(predicate: str, a: ir.Value, b: ir.Value) -> ir.Value:
            return arith.CmpIOp(getattr(arith.CmpIPredicate, predicate), a, b).result

        some = compare("sgt", count, constant_index(0))
        if self.bounds is None:
            return branch(some, carried, lambda: body(first, count, carried, self.masked), lambda: carried)
        begin, full_begin, full_end, last = self.bounds
        inside = arith.AndIOp(compare("slt", first, last), compare("sgt", end, begin)).result
        every = arith.AndIOp(compare("sge", first, full_begin), compare("sle", end, full_end)).result

        def partial_or_full() -> list[ir.Value]:
            full, partial = (lambda masked=masked: body(first, count, carried, masked) for masked in (False, True))
            return branch(every, carried, full, partial)

        return branch(arith.AndIOp(some, inside).result, carried, partial_or_full, lambda: carried)


def listed_keys(
    lists: KeyLists, entries: ir.Value, span: Range, size: int, length: ir.Value, limits: Limits, *, carried: list[ir.Value], body: Body
) -> list[ir.Value]:
    """The loop over the keys of a list, in blocks of `size`. Of keys that are listed one by one, `body` gets the place in the list."""
    step, one = constant_index(size), constant_index(1)
    if lists.names_keys:

        def several(place: ir.Value, inside: list[ir.Value]) -> list[ir.Value]:
            count = arith.MinSIOp(step, arith.SubIOp(span.end, place).result).result
            return body(place, count, inside, limits.masked)

        return loop(span.begin, span.end, step, carried, several)

    def block(number: ir.Value, inside: list[ir.Value]) -> list[ir.Value]:
        first = arith.MulIOp(read(entries, [number]), constant_index(lists.keys)).result

        def part(offset: ir.Value, within: list[ir.Value]) -> list[ir.Value]:
            kv = arith.AddIOp(first, offset).result
            return limits.apply(kv, arith.MinSIOp(step, arith.SubIOp(length, kv).result).result, within, body)

        if lists.keys == size:
            return part(constant_index(0), inside)
        return loop(constant_index(0), constant_index(lists.keys), step, inside, part)

    return loop(span.begin, span.end, one, carried, block)


def listing_queries(
    lists: KeyLists, back: ir.Value, span: Range, size: int, length: ir.Value, limits: Limits, *, carried: list[ir.Value],
    body: Callable[[ir.Value, ir.Value, ir.Value, list[ir.Value], bool], list[ir.Value]], whole: bool = False,
) -> list[ir.Value]:  # fmt: skip
    """The loop over the queries that list a tile of keys, in blocks of at most `size`; `body` gets the place in the list, too.

    With `whole` positions are cut off at `length`, so that targets that count in few bits know them.
    """
    step = constant_index(size)

    def block(place: ir.Value, inside: list[ir.Value]) -> list[ir.Value]:
        first = arith.MulIOp(read(back, [place]), constant_index(lists.queries)).result
        if whole:
            first = arith.MaxSIOp(arith.MinSIOp(first, length).result, constant_index(0)).result
        end = arith.MinSIOp(arith.AddIOp(first, constant_index(lists.queries)).result, length).result

        def part(row: ir.Value, within: list[ir.Value]) -> list[ir.Value]:
            count = arith.MinSIOp(step, arith.SubIOp(end, row).result).result
            return limits.apply(row, count, within, lambda r, n, values, masked: body(place, r, n, values, masked))

        return part(first, inside) if lists.queries <= size else loop(first, end, step, inside, part)

    return loop(span.begin, span.end, constant_index(1), carried, block)
