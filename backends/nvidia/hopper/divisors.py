"""Captured numbers that a map divides positions by: made into factors once a tile, where a division for each column would take 64 bits."""

from collections.abc import Iterator
from contextlib import contextmanager

from attn_mlir.backends.gpu.scalar_integers import by_factor
from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import is_constant


@contextmanager
def divisors(core: Core, block: ir.Block) -> Iterator[None]:
    """Prints them, so that inside of the context divisions by them become multiplications."""
    depends = dependence(block)
    found = dict.fromkeys(
        view.operation.operands[1]
        for view in block.operations
        if by_factor(view.operation, core.scalars.ranges) and 1 in depends[view.operation.results[0]]
    )
    found = [value for value in found if not depends.get(value) and not is_constant(value)]
    for value in found:
        name = core.names.fresh("divisor")
        core.writer.line(f"const {core.scalars.helper('divisor')} {name}({core.scalars.emit(value)});")
        core.scalars.divisors[value] = name
    yield
    for value in found:
        del core.scalars.divisors[value]
