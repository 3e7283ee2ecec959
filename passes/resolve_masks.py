"""`attn-resolve-masks`: turns a mask into loop bounds and block classes."""

import dataclasses
from typing import ClassVar

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.base import Pass
from attn_mlir.passes.intervals.block import classify_block
from attn_mlir.passes.intervals.bounds import LOOSE, Solver
from attn_mlir.passes.intervals.box import Box
from attn_mlir.passes.intervals.emit import IntervalEmitter, sizes_in
from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.intervals.interval import Interval
from attn_mlir.passes.intervals.nodes import Bound, postorder, terms_of
from attn_mlir.passes.intervals.nonempty import rows_nonempty
from attn_mlir.passes.intervals.read import MaskReader
from attn_mlir.passes.intervals.substitute import assume_positive_divisors
from attn_mlir.passes.regions import block_of, find_all, piece
from attn_mlir.passes.sequences import packing_of

_QUERIES, _KEYS = ("q_begin", "q_end"), ("kv_begin", "kv_end")
_BLOCK = ("b", "h", *_QUERIES, *_KEYS)
_LARGEST = 2**30
"""Larger factors of positions could leave 64 bits: nothing is concluded from them."""
_STALE = ("attn.bounds", "attn.query_bounds", "attn.block_mask")


@dataclasses.dataclass(frozen=True)
class ResolveMasks(Pass):
    """Adds `attn.bounds`, where they are not exact `attn.block_mask`, and `rows_nonempty` to every attention.

    Of packed tensors bounds are within the lengths of `attn.sequences`, and rows may be empty. An `attn.pairs` gets `attn.query_bounds`
    instead of `attn.bounds`: the rows that see a block of keys.
    `cuts` (0 to 2) is how often a block is cut at multiples of the mask's largest modulus before it is classified.
    """

    name: ClassVar[str] = "attn-resolve-masks"
    cuts: int = 1

    def run(self, module: ir.Operation) -> bool:
        if self.cuts not in (0, 1, 2):
            module.location.emit_error(f"attn-resolve-masks cuts a block 0 to 2 times, got cuts={self.cuts}")
            return False
        for owner in find_all(module, "attn.attention", "attn.online", "attn.pairs"):
            mask = piece(owner, "attn.mask")
            for stale in [found for name in _STALE if (found := piece(owner, name)) is not None]:
                stale.erase()
            nonempty = packing_of(owner, "key") is None and piece(owner, "attn.key_lists") is None  # which may have or name no keys
            if mask is not None:
                with mask.location:
                    nonempty = _Resolution(owner, mask, self.cuts).run() and nonempty
            if owner.name != "attn.pairs":
                with owner.context:
                    owner.attributes["rows_nonempty"] = ir.BoolAttr.get(nonempty)
        return True


def keys_of_rows(pairs: ir.Operation) -> tuple[Bound, Bound] | None:
    """Where the keys begin and end that the queries [q_begin, q_end) of an `attn.pairs` see, of variables with these names, b and h.

    None without a mask, and where nothing is known.
    """
    mask = piece(pairs, "attn.mask")
    if mask is None:
        return None
    try:
        bounds, *_ = _Resolution(pairs, mask, 0, by_keys=False).analyse()
    except RecursionError:  # conditions nested hundreds deep
        return None
    return bounds[0], bounds[3]


class _Resolution:
    """One mask on its way to bounds and classes."""

    def __init__(self, owner: ir.Operation, mask: ir.Operation, cuts: int, by_keys: bool | None = None) -> None:
        """`by_keys`: whether bounds are those of queries for a block of keys; as a kernel of the owner needs them where it is None."""
        self._owner, self._mask, self._cuts = owner, mask, cuts
        self._by_keys = owner.name == "attn.pairs" if by_keys is None else by_keys
        product = piece(owner, "attn.product") if owner.name == "attn.pairs" else owner
        query, key = list((product or owner).operands)[:2]
        self._pool = pool = Pool()
        arguments = [pool.leaf("var", name, 0) for name in ("b", "h", "q_idx", "kv_idx")]
        self._q, self._kv = arguments[2:]
        block = block_of(mask)
        sized = list(owner.operands) or [query, key]
        self._reader = MaskReader(pool, dict(zip(block.arguments, arguments, strict=True)), sized=sized)
        self._sq, self._skv = self._length("query", query, arguments[0]), self._length("key", key, arguments[0])
        pool.assume(self._q, upper=self._sq - 1)
        pool.assume(self._kv, upper=self._skv - 1)
        self._reader.read_all(block)
        self._expression = self._reader.read(block.operations[-1].operands[0])

    def _length(self, side: str, tensor: ir.Value, b: Bound) -> Bound:
        """How many positions there are: those of the tensor, or those of sequence b, which may be none."""
        packing = packing_of(self._owner, side)
        if packing is None:
            return self._reader.size(tensor, 2)
        length = self._pool.node("gather", (b,), self._reader.identify(packing.lengths))
        self._pool.assume(length, lower=self._pool.lift(0))
        return length

    def run(self) -> bool:
        """Emits the pieces; whether every row provably has a key."""
        try:
            bounds, classes, nonempty = self.analyse()
            if _has_large_factors([self._expression, *bounds, *(classes or ())]):
                bounds, classes, nonempty = self._given_up()
        except RecursionError:  # conditions nested hundreds deep
            bounds, classes, nonempty = self._given_up()
        name, block = ("query_bounds", _KEYS) if self._by_keys else ("bounds", _QUERIES)
        emitted = self._emit(name, ("b", "h", *block), bounds, self._mask)
        if classes is not None:
            self._emit("block_mask", _BLOCK, classes, emitted)
        return nonempty

    def _given_up(self) -> tuple[list[Bound], list[Bound] | None, bool]:
        """Keeps every key, and asks the mask everywhere."""
        self._expression = self._pool.node("unknown_bool", (), "too deep")
        return self.analyse()

    def analyse(self) -> tuple[list[Bound], list[Bound] | None, bool]:
        """The bounds, (any, all) where they say more, and whether every row provably has a key."""
        pool = self._pool
        rows, keys = self._range(*_QUERIES), self._range(*_KEYS)
        mask, guard = assume_positive_divisors(self._expression)
        unknown, size = (self._q, self._sq) if self._by_keys else (self._kv, self._skv)
        solver = Solver(pool, unknown, size, Box({self._kv: keys} if self._by_keys else {self._q: rows}))
        region = solver.solve(mask)
        zero = pool.lift(0)
        unbounded = (zero, zero, zero, size)
        bounds = [pool.select(guard, *pair) for pair in zip(solver.finish(region), unbounded, strict=True)]
        nonempty = rows_nonempty(self._expression, self._q, self._kv, self._skv)
        if region.shape != LOOSE:
            return bounds, None, nonempty
        some, every = classify_block(mask, {self._q: rows, self._kv: keys}, self._cuts)
        undecided = some.constant == 1 and every.constant == 0
        return bounds, None if undecided else [some | ~guard, every & guard], nonempty

    def _range(self, begin: str, end: str) -> Interval:
        """A range that is not empty."""
        first, last = self._pool.leaf("var", begin, 0), self._pool.leaf("var", end, 1)
        self._pool.assume(first, upper=last - 1)
        self._pool.assume(last, lower=first + 1)
        return Interval(first, last - 1)

    def _emit(self, name: str, arguments: tuple[str, ...], roots: list[Bound], after: ir.Operation) -> ir.Operation:
        leaves = [self._pool.leaf("var", argument) for argument in arguments]
        sizes = {node: self._size(node) for node in sizes_in(roots)}

        def body(*values: ir.Value) -> list[ir.Value]:
            return IntervalEmitter({**dict(zip(leaves, values, strict=True)), **sizes}).emit(roots)

        with ir.InsertionPoint.after(after):
            return build.piece(name, [(n, ir.IndexType.get()) for n in arguments], body)

    def _size(self, node: Bound) -> ir.Value:
        """The size as a value before the attention or pairs, an existing one if there is any."""
        source, dimension = node.data
        for use in source.uses:
            op = use.owner.operation
            if op.name == "tensor.dim" and op.block == self._owner.block and op.is_before_in_block(self._owner):
                if self._reader.read(op.results[0]) is node:
                    return op.results[0]
        with ir.InsertionPoint(self._owner):
            return tensor.dim(source, arith.constant(ir.IndexType.get(), dimension))


def _has_large_factors(roots: list[Bound]) -> bool:
    """Constants may be large, as those that stand for no limit are: they are kept within 64 bits where they are emitted."""
    sums = [node for node in postorder(roots) if node.op == "sum"]
    return any(abs(k) > _LARGEST for node in sums for _, k in terms_of(node)[1])
