"""What ops of scheduled kernels cost in a model with one rate for each kind of work: cycles of one multiprocessor, nothing measured."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.mlir import ir
from attn_mlir.reference.warp.program import Inst

_FREE = ("arith.constant", "tensor.extract", "warp.yield")
_SPECIAL = ("arith.divf", "math.exp", "math.exp2", "math.log", "math.log2", "math.sqrt", "math.rsqrt", "math.tanh")
_OF_DROPOUT = 6
"""Operations of an element."""
_SHARED = 128.0
"""Bytes that warps read or write of shared memory in a cycle."""
_FOUND = 32
"""Pages that the lanes of a warp look up."""


@dataclass(frozen=True)
class Costs:
    """Rates a cycle: `flops` of products, `lanes` operations and `special` exponentials of maps, `bytes` of copies and stores.

    A copy lands `latency` cycles after its bytes have passed. Products, maps and copies each have one unit, which does one after the other.
    """

    flops: float
    lanes: float
    special: float
    bytes: float
    latency: float

    def told(self) -> list[str]:
        """The model in words, a line for each kind."""
        return [
            f"load, store: bytes / {self.bytes:g}, one after the other, and {self.latency:g} until they land",
            f"product: FLOPs / {self.flops:g}, one after the other, in the order in which they were issued",
            f"map: operations / {self.lanes:g} or exponentials, quotients / {self.special:g}, the larger; one after the other",
            f"registers to and from shared memory: bytes / {_SHARED:g}",
            "arrival, and a wait for what is there: 0",
        ]


def product(costs: Costs, inst: Inst) -> float:
    """Cycles of a matrix product."""
    turned, a = inst.attributes["transpose_a"], inst.sources[1]
    fragment = inst.fragments[0]
    assert fragment is not None and isinstance(a, ir.ShapedType)
    return 2.0 * math.prod(fragment.shape) * a.shape[0 if turned else 1] / costs.flops


def computed(costs: Costs, inst: Inst) -> float:
    """Cycles of a map, a reduction between threads, or a vote: each scalar op counts along the axes on which it depends."""
    if not inst.blocks:
        fragment = inst.source_fragments[0]
        return math.prod(fragment.shape) / costs.lanes if fragment is not None else 1.0
    (indices, body), shape = inst.blocks[0], inst.attributes["shape"]
    axes = {index: frozenset([axis]) for axis, index in enumerate(indices)}
    operations, special = 0, 0
    for op in body:
        found = frozenset[int]().union(*(axes.get(value, frozenset()) for value in op.operands))
        axes.update(dict.fromkeys(op.results, found))
        count = math.prod(shape[axis] for axis in found)
        operations += count if op.name not in _FREE else 0
        special += count if op.name in _SPECIAL else 0
    reduced = sum(bool(kind) for kind in inst.attributes["reductions"]) * math.prod(shape)
    return max((operations + reduced) / costs.lanes, special / costs.special)


def _dropped(costs: Costs, inst: Inst) -> float:
    """Cycles of the bits of a tile: ten rounds of Philox for 16 elements, and what makes elements 0."""
    fragment = inst.source_fragments[0]
    assert fragment is not None
    return _OF_DROPOUT * math.prod(fragment.shape) / costs.lanes


def _of(position: int, rate: Callable[[Costs], float], result: bool = False) -> Callable[[Costs, Inst], float]:
    """Cycles of moving the tile that is an operand, or the result, of an op."""
    return lambda costs, inst: bytes_of((inst.types if result else inst.sources)[position]) / rate(costs)


def _loaded(costs: Costs, inst: Inst) -> float:
    fragment = inst.fragments[0]
    assert fragment is not None
    return fragment.elements * {"f16": 2, "bf16": 2}.get(fragment.element, 4) / costs.bytes


COSTS: dict[str, tuple[str, str, Callable[[Costs, Inst], float]]] = {
    "warp.copy_async": ("load", "copies", _of(5, lambda costs: costs.bytes)),
    "warp.copy_lanes_async": ("load", "copies", _of(5, lambda costs: costs.bytes)),
    "warp.copy_rows_async": ("load", "copies", lambda costs, inst: 4.0 * inst.sources[4].shape[1] / costs.bytes),
    "warp.copy_rows_lanes_async": ("load", "copies", lambda costs, inst: 4.0 * inst.attributes["count"] / costs.bytes),
    "warp.copy_rows_scaled": ("load", "copies", lambda costs, inst: 4.0 * inst.sources[5].shape[1] / costs.bytes),
    "warp.find_pages": ("load", "copies", lambda costs, inst: 4.0 * _FOUND / costs.bytes),
    "warp.copy_pages_async": ("load", "copies", _of(-3, lambda costs: costs.bytes)),
    "warp.copy_window_async": ("load", "copies", _of(-3, lambda costs: costs.bytes)),
    "warp.load_async": ("load", "copies", _loaded),
    "warp.load": ("load", "copies", _loaded),
    "warp.read": ("load", "", _of(0, lambda costs: _SHARED, result=True)),
    "warp.read_transposed": ("load", "", _of(0, lambda costs: _SHARED, result=True)),
    "warp.make_rows": ("load", "copies", lambda costs, inst: 4.0 * inst.sources[0].shape[1] / costs.bytes),
    "warp.mma_async": ("product", "products", product),
    "warp.mma": ("product", "products", product),
    "warp.map": ("map", "maps", computed),
    "warp.drop": ("map", "maps", _dropped),
    "warp.reduce": ("map", "maps", computed),
    "warp.reaches": ("map", "maps", computed),
    "warp.vote": ("map", "maps", computed),
    "warp.write": ("store", "", _of(0, lambda costs: _SHARED)),
    "warp.write_transposed": ("store", "", _of(0, lambda costs: _SHARED)),
    "warp.clear_rows": ("store", "", _of(0, lambda costs: _SHARED)),
    "warp.sum_columns": ("map", "maps", lambda costs, inst: 2 * math.prod(inst.sources[0].shape) / costs.lanes),
    "warp.write_diagonal": ("store", "", lambda costs, inst: 4.0 * inst.sources[0].shape[1] / _SHARED),
    "warp.store_sums": ("store", "copies", lambda costs, inst: 4.0 * inst.sources[0].shape[1] / costs.bytes),
    "warp.store_lanes": ("store", "copies", _of(0, lambda costs: costs.bytes)),
    "warp.transpose": ("store", "", _of(0, lambda costs: _SHARED / 2)),  # read and written
    "warp.store": ("store", "copies", _of(0, lambda costs: costs.bytes)),
    "warp.atomic_add": ("store", "copies", _of(0, lambda costs: costs.bytes)),
    "warp.store_async": ("store", "copies", _of(0, lambda costs: costs.bytes)),
    "warp.add_async": ("store", "copies", _of(0, lambda costs: costs.bytes)),
    **{f"warp.{name}": ("wait", "", lambda costs, inst: 0.0)
       for name in ("wait", "named_sync", "order_now", "order_wait", "claim", "mma_wait", "load_wait", "store_wait", "copy_wait", "hold")},
    **{f"warp.{name}": ("arrive", "", lambda costs, inst: 0.0) for name in ("arrive", "arrive_expect", "named_arrive", "order_pass")},
}  # fmt: skip
"""By the name of an op: the kind of its event, the unit that does the work ("": the warps themselves), and its cycles."""
