"""Kernels of one chunk whose products a warpgroup makes (wgmma): factors lie in swizzle atoms, each warp has whole rows of results."""

from dataclasses import replace

from attn_mlir.backends.gpu.structure import operations
from attn_mlir.backends.nvidia.hopper.wgmma import SharedOperand, product, wgmma, wgmma_name
from attn_mlir.backends.nvidia.passes.prepare_chunks import ONCE
from attn_mlir.backends.nvidia.scans.boxes import ATOM, box_lines, bytes_of
from attn_mlir.backends.nvidia.scans.core import ScanCore
from attn_mlir.backends.nvidia.scans.layout import HALVES, ScanGrid, WarpScanLayout
from attn_mlir.backends.nvidia.scans.loops import element_of, shape_of
from attn_mlir.backends.nvidia.scans.printer import ScanPrinter
from attn_mlir.backends.nvidia.scans.traffic import ScanTraffic
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

_ROWS = 64
"""Of a product of a warpgroup."""


class AtomLayout(WarpScanLayout):
    """Facts of a kernel of one chunk whose products are all x y^T of loaded tiles of 64 positions that nothing else reads.

    Raises UnsupportedError for others.
    """

    align = 1024
    """Where atoms begin."""

    def __init__(self, kernel: ir.Operation, pieces: int, stages: int, warps: int) -> None:
        dots = find_all(kernel, *DOTS)
        if warps != 4 or stages != 1 or not dots or not all(_is_known(op) for op in dots):
            raise UnsupportedError("scans: a warpgroup multiplies loaded tiles of 64 positions, in kernels of one chunk")
        super().__init__(kernel, pieces, stages, warps)
        if any(value not in self.places or not self.is_early(value.owner.operation) for op in dots for value in op.operands):
            raise UnsupportedError("scans: a warpgroup multiplies tiles that are loaded first")
        self.arrival = -(-self.size // 8) * 8
        """Where the barrier is at which tiles arrive."""
        self.size = self.arrival + 8

    def grid(self, shape: tuple[int, ...]) -> ScanGrid:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As the results of a product are shared: 16 rows for each warp."""
        return replace(super().grid(shape), tall=shape[0] % _ROWS == 0)


def _is_known(op: ir.Operation) -> bool:
    """Whether a product is x y^T of two loaded tiles that have no other readers than products."""
    if op.name != "tile.dot" or flag(op, "transpose_a") or not flag(op, "transpose_b") or ONCE not in op.parent.attributes:
        return False
    for value in op.operands:
        loaded = not isinstance(value.owner, ir.Block) and value.owner.operation.name == "tile.load"
        if not loaded or element_of(value) not in HALVES or shape_of(value)[0] != _ROWS or shape_of(value)[1] % ATOM:
            return False
        if any(use.owner.operation.name not in DOTS for use in value.uses):
            return False
    return True


class AtomCore(ScanCore):
    """Knows the instructions of warpgroups that the code calls: their texts, by name."""

    def __init__(self, kernel: ir.Operation, layout: AtomLayout) -> None:
        super().__init__(kernel, layout)
        self.instructions: dict[str, str] = {}
        self.arrival = f"attn::shared_address(memory + {layout.arrival})"


class AtomTraffic(ScanTraffic):
    """Has TMA bring tiles to atoms, and copies numbers of rows, of which others are made in the meantime."""

    def copy(self, loads: list[ir.Operation]) -> None:
        """One thread asks; the barrier is there for all threads when they have met."""
        core = self.core
        assert isinstance(core, AtomCore)
        lines = [f"attn::barrier_init({core.arrival}, 1);", "attn::barrier_init_fence();"]
        lines += [f"attn::barrier_arrive_expect({core.arrival}, {bytes_of(loads)});", *box_lines(core, loads, core.arrival)]
        core.writer.line("if (threadIdx.x == 0) {", *(f"  {line}" for line in lines), "}")


class AtomPrinter(ScanPrinter):
    """Prints products of a warpgroup; those that follow each other run together."""

    def __init__(self, core: AtomCore) -> None:
        super().__init__(core)
        self.traffic = AtomTraffic(core, self.maps)
        self._atoms = core
        self._running: list[str] = []
        self._arrived = False

    def dot(self, op: ir.Operation) -> None:
        """A product, and the wait for it and those before it, unless another one follows; the first one waits for tiles."""
        core, (left, right) = self._atoms, list(op.operands)
        if not self._arrived:
            core.writer.line(f"attn::barrier_wait({core.arrival}, 0);")
            self._arrived = True
        element, depth = element_of(left), shape_of(left)[1]
        core.touch((core.layout.places[value], False, "") for value in (left, right))
        name = self.maps.declare(op.results[0], "product")
        wrapper = wgmma_name(_ROWS, "shared", element)
        core.instructions[wrapper] = wgmma(_ROWS, "shared", element)
        places = [core.at(core.layout.places[value]) for value in (left, right)]
        a, b = (SharedOperand(f"attn::shared_address({place})", 2 * ATOM * _ROWS) for place in places)
        core.writer.line("attn::wgmma_begin();", *product(name, _ROWS, depth, a, b, element, clear=True), "attn::wgmma_commit();")
        self._running.append(name)
        steps = operations(op.block)
        after = steps[steps.index(op) + 1]
        if after.name == "tile.dot":
            return
        core.writer.line("attn::wgmma_wait<0>();", *(f"attn::hold({each});" for each in self._running))
        self._running = []
