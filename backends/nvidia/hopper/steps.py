"""Loops over keys whose products can overlap: scores = queries keys^T, maps, accumulator = accumulator * scale + weights values."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, maker, operations, yielded
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.mlir import ir


@dataclass(frozen=True)
class KvStep:
    """The work of one loop of the chain on a block of keys: the two loads, the two products and what is between them.

    `block` holds them: the loop's body, or, where blocks are classified, the branch for blocks without absent pairs; then `some` and
    `every` tell whether any and whether all pairs of a block are present.
    """

    loop: ir.Operation
    block: ir.Block
    keys: ir.Operation
    scores: ir.Operation
    values: ir.Operation
    sums: ir.Operation
    rest: tuple[ir.Operation, ...]
    some: ir.Value | None = None
    every: ir.Value | None = None

    @property
    def whole(self) -> bool:
        """Whether its blocks have all of their keys."""
        return not ir.RankedTensorType(self.keys.results[0].type).is_dynamic_dim(0)

    @property
    def position(self) -> ir.Value:
        """Where the block begins."""
        return next(iter(body(self.loop).arguments))


def read_step(loop: ir.Operation) -> KvStep | None:
    """The parts of a loop of that shape, or None."""
    branches = [op for op in operations(body(loop)) if op.name == "scf.if"]
    if not branches:
        return _read_block(loop, body(loop), None, None)
    present = branches[0]
    unchanged = len(present.regions) == 2 and yielded(present.regions[1].blocks[0]) == list(body(loop).arguments)[1:]
    inner = operations(body(present))
    if len(branches) != 1 or not unchanged or inner[0].name != "scf.if" or len(inner) != 2:
        return None
    handed_on = yielded(body(present)) == list(inner[0].results) and yielded(body(loop)) == list(present.results)
    return _read_block(loop, body(inner[0]), present.operands[0], inner[0].operands[0]) if handed_on else None


def _read_block(loop: ir.Operation, block: ir.Block, some: ir.Value | None, every: ir.Value | None) -> KvStep | None:
    ops = operations(block)[:-1]
    loads = {op.results[0]: op for op in ops if op.name == "tile.load"}
    dots = [op for op in ops if op.name == "tile.dot"]
    sums = [op for op in ops if op.name in ("tile.dot_add", "tile.dot_rescale")]
    known = ("tile.load_window", "tile.band", "tile.load", *DOTS, "tile.map")
    if not (len(dots) == len(sums) == 1 and len(loads) == 2):
        return None
    if any(op.name.startswith(("tile.", "scf.", "attn.")) and op.name not in known for op in ops):
        return None
    keys, values = loads.get(dots[0].operands[1]), loads.get(list(sums[0].operands)[-1])
    weights = maker(list(sums[0].operands)[-2])
    if keys is None or values is None or keys == values or weights is None or weights.name != "tile.map":
        return None
    accumulator = sums[0].operands[0]
    if accumulator not in list(body(loop).arguments) or sums[0].results[0] not in yielded(block) or maker(dots[0].operands[0]) in ops:
        return None
    rest = tuple(op for op in ops if op not in (keys, values, dots[0], sums[0]))
    return KvStep(loop, block, keys, dots[0], values, sums[0], rest, some, every)


def read_chain(loops: list[ir.Operation]) -> list[KvStep] | None:
    """The steps of a chain of loops of that shape over the same tensors, or None."""
    steps = [read_step(loop) for loop in loops]
    found = [step for step in steps if step is not None]
    if len(found) != len(steps) or all(step.whole for step in found):
        return None
    first = found[0]
    same = all(
        (step.keys.operands[0], step.values.operands[0]) == (first.keys.operands[0], first.values.operands[0])
        and list(step.loop.operands)[2] == list(first.loop.operands)[2]
        for step in found
    )
    return found if same else None
