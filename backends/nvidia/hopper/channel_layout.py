"""Shared memory of a scan with decays of channels: stages that are ready for products, tiles of levels, swizzle atoms of what is loaded."""

from attn_mlir.backends.gpu.structure import element_name
from attn_mlir.backends.nvidia.hopper.channel_read import ChannelScan
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator, of_warps
from attn_mlir.backends.nvidia.hopper.scan_common import ATOM, ATOM_BYTES, CHUNK
from attn_mlir.mlir import ir

STAGES = 2
"""Chunks that are prepared or multiplied at the same time, and swizzle atoms that are loaded ahead."""
WARPS = 8
"""Warps that prepare chunks."""
_LEVELS = 6


class ChannelLayout:
    """Where things are. `tiles`: offsets within a stage; `loaded`: within a swizzle atom's inputs, of 64 channels."""

    def __init__(self, scan: ChannelScan) -> None:
        self.memory, self.atoms, self.warpgroups = SharedAllocator(), scan.keys // ATOM, scan.values // ATOM
        self.tiles: dict[str, int] = {}
        offset = 0
        rows = scan.store is not None
        made = [("late", self.atoms), ("early", self.atoms), ("pairs", 1)] if rows else [(scan.entering, self.atoms)]
        for name, atoms in (("v", self.warpgroups), *made):
            self.tiles[name] = offset
            offset += atoms * ATOM_BYTES
        self.stage_bytes = offset
        # Without decays that are loaded, their place is that of the products of steps.
        self.decay = "f32" if scan.decays is None else element_name(scan.decays.results[0].type)
        decays = ATOM_BYTES * (2 if scan.decays is not None and self.decay == "f32" else 1)
        self.loaded = {"decays": 0, **{name: decays + n * ATOM_BYTES for n, name in enumerate(scan.operands)}}
        self.loaded_bytes = decays + len(scan.operands) * ATOM_BYTES
        self.decay_bytes = scan.keys * 4
        memory = self.memory
        memory.tile("kStages", STAGES * self.stage_bytes)
        if rows:
            memory.tile("kLevels", _LEVELS * ATOM_BYTES)
        memory.tile("kLoaded", STAGES * self.loaded_bytes)
        memory.barrier("kReady", STAGES, f"1 + {of_warps(WARPS)}")
        memory.barrier("kFree", STAGES, f"attn::arrivals_of({self.consumers})")
        memory.barrier("kFull", STAGES, 1)
        memory.slot("kChunkDecay", STAGES * self.decay_bytes)
        if rows:
            memory.slot("kOwn", self.atoms * CHUNK * 4)

    @property
    def consumers(self) -> int:
        """Threads that hold states."""
        return 128 * self.warpgroups

    @property
    def threads(self) -> int:
        """Of all warps."""
        return self.consumers + 32 * WARPS

    def address(self) -> str:
        """The declaration of the address of a stage."""
        return f"const uint32_t at = shared + kStages + stage * {self.stage_bytes};"


def place_of(core: Core, load: ir.Operation) -> str:
    """The last coordinates of a tile for the copy engine: row, head, batch."""
    batch, head, row = (core.value(value) for value in list(load.operands)[1:4])
    return f"{row}, {head}, {batch}"
