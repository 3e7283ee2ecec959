"""Semaphores of sums over keys, where lists say which blocks of keys a block of queries sees.

Of each entry of the inverse a kernel knows which block its queries list next. A program adds after the one that has the next tile, unless
the mask says that these queries see nothing there: then they see nothing of later tiles, either, as bounds grow with keys.
"""

from dataclasses import dataclass, field

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.ordered_sums import depends, grows
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import maker

_SIGNS = {"slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}
_PREDICATES = {getattr(arith.CmpIPredicate, name).value: sign for name, sign in _SIGNS.items()}
KEY = "listed_key"
"""The first key of a tile, in functions of it."""


@dataclass
class ListedSemaphores:
    """The loop over entries, the tensor of next blocks, how many tiles a block has, and what bounds say of a step."""

    kernel: PairsKernel
    loop: ir.Operation
    after: ir.Value
    tiles: int
    limits: list[ir.Operation]
    """Comparisons with bounds that depend on the keys: all hold where a step runs."""
    _bounds: list[tuple[ir.Value, str, str, bool]] = field(default_factory=list)

    def declare(self, core: Core) -> None:
        """Prints the bounds as functions of the first key, before anything else that depends on it."""
        key = _first_key(self.kernel)
        self._bounds = []
        for op in self.limits:
            left, right = op.operands
            other, bound, first = (left, right, False) if depends(right, key) else (right, left, True)
            name = core.names.fresh("listed_bound")
            with core.scope(f"const auto {name} = [&](int {KEY}) -> int"):
                for place in ops_of(core.kernel.regions[0].blocks[0], "tile.program_id"):
                    if ir.IntegerAttr(place.attributes["axis"]).value == 0:
                        core.scalars.bind(place.results[0], f"({KEY} / {self.kernel.keys})")
                core.scalars.bind(key, KEY)
                core.writer.line(f"return {core.value(bound)};")
            core.writer.line(";")
            self._bounds.append((other, name, _PREDICATES[ir.IntegerAttr(op.attributes["predicate"]).value], first))

    def wait(self, core: Core, semaphore: str) -> None:
        """Prints the wait for the program that has the next tile."""
        keys, length = self.kernel.keys, core.arguments.size(self.kernel.over, 2)
        entry = core.arguments.element(self.after, [core.value(self.loop.regions[0].blocks[0].arguments[0])])
        after = f"({entry} < 0 ? -1 : {entry} * {self.tiles})"
        if self.tiles > 1:
            after = f"((block + 1) % {self.tiles} && key0 + {keys} < {length} ? block + 1 : {after})"
        name = core.names.fresh("next_tile")
        core.writer.line(f"const int {name} = {after};")
        seen = [f"{name} >= 0"]
        for other, bound, sign, first in self._bounds:
            sides = [core.value(other), f"{bound}({name} * {keys})"]
            seen.append(f" {sign} ".join(sides[::-1] if first else sides))
        core.writer.line(f"if ({' && '.join(seen)}) attn::semaphore_wait({semaphore}, {name} + 1);")


def listed_semaphores(kernel: PairsKernel) -> ListedSemaphores | None:
    """The semaphores of a kernel over lists; None of others. Raises UnsupportedError where bounds do not grow with keys."""
    fields = ir.DictAttr(kernel.function.attributes["tile.kernel"])
    if "listed" not in fields:
        return None
    after, tiles = ir.DenseI64ArrayAttr(fields["listed"])
    loop, key = ops_of(kernel.query_loop, "scf.for")[0], _first_key(kernel)
    limits: list[ir.Operation] = []
    branch = next(iter(_branches(loop.regions[0].blocks[0])), None)
    if branch is not None:
        limits = [op for op in _comparisons(branch.operands[0]) if depends(op.results[0], key)]
    count = kernel.present
    for op in limits:
        sides = [value for value in op.operands if depends(value, key)]
        sign = _PREDICATES.get(ir.IntegerAttr(op.attributes["predicate"]).value)
        if sign is None or len(sides) != 1 or not grows(sides[0], key, count) or depends(sides[0], loop.regions[0].blocks[0].arguments[0]):
            raise UnsupportedError("hopper: a fixed order of sums needs queries that begin and end later for later keys")
    return ListedSemaphores(kernel, loop, list(kernel.function.regions[0].blocks[0].arguments)[after], tiles, limits)


def _branches(block: ir.Block) -> list[ir.Operation]:
    """The outermost branches in a block, in order."""
    found = ops_of(block, "scf.if")
    return found or [op for loop in ops_of(block, "scf.for") for op in _branches(loop.regions[0].blocks[0])]


def _comparisons(value: ir.Value) -> list[ir.Operation]:
    """The comparisons all of which hold where a condition does."""
    op = maker(value)
    if op is not None and op.name == "arith.andi":
        return [found for operand in op.operands for found in _comparisons(operand)]
    if op is None or op.name != "arith.cmpi":
        raise UnsupportedError("hopper: a fixed order of sums needs masks whose blocks are known from their bounds")
    return [op]


def _first_key(kernel: PairsKernel) -> ir.Value:
    return kernel.key_loop.regions[0].blocks[0].arguments[0]
