"""Shared memory of a scan with decays of value channels: blocks that are loaded ahead, and what its two kinds of warps exchange."""

from attn_mlir.backends.gpu.structure import element_name
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator, of_warps
from attn_mlir.backends.nvidia.hopper.scan_common import ATOM
from attn_mlir.backends.nvidia.hopper.value_read import BLOCK, ValueScan
from attn_mlir.backends.nvidia.hopper.wgmma import ROW_BYTES

SLOTS = 7
"""Blocks that are loaded or in use at the same time."""
WARPS = 4
"""Warps of 64 columns, which take blocks in turn."""
BLOCK_ATOM = BLOCK * ROW_BYTES
"""Bytes of 64 columns of 16 bits of a block."""
SCORES = 1280
"""Bytes of the scores of a block: 16 rows of 80."""


class ValueLayout:
    """Where things are. `tiles`: offsets within a slot. For every 64 columns each warp has a place of its own (`of_warp`)."""

    def __init__(self, scan: ValueScan) -> None:
        self.memory, self.warpgroups = SharedAllocator(), scan.values // ATOM
        self.tiles: dict[str, int] = {}
        self.decay = "f32" if scan.decays is None else element_name(scan.decays.results[0].type)
        self.atoms = {"q": scan.keys // ATOM, "k": scan.keys // ATOM, "v": self.warpgroups, "factor": self.warpgroups}
        if scan.decays is not None:
            self.atoms["decay"] = self.warpgroups * (2 if self.decay == "f32" else 1)
        offset = 0
        for name, atoms in self.atoms.items():
            self.tiles[name] = offset
            offset += atoms * BLOCK_ATOM
        self.slot_bytes = offset
        memory, each = self.memory, WARPS * self.warpgroups
        memory.tile("kSlots", SLOTS * self.slot_bytes)
        memory.tile("kExchanged", each * 2 * BLOCK_ATOM)
        memory.barrier("kFull", SLOTS, 1)
        memory.barrier("kFree", SLOTS, of_warps(5 * self.warpgroups))
        memory.barrier("kReady", each, of_warps(1))
        memory.barrier("kOutside", each, of_warps(4))
        memory.slot("kScores", each * SCORES)
        memory.slot("kChunkDecay", each * ATOM * 4)

    @property
    def threads(self) -> int:
        """Of all warps."""
        return 2 * 128 * self.warpgroups

    def slot(self) -> tuple[str, str]:
        """The declarations of the slot of block `number`, and of its address `in`."""
        return f"const int slot = number % {SLOTS};", f"const uint32_t in = shared + kSlots + slot * {self.slot_bytes};"

    def of_warp(self, warp: str) -> tuple[str, ...]:
        """The declarations of the places of a warp of 64 columns: what enters the state, or what it gives; factors; barriers."""
        chunk_decay = f"chunk_decay = shared + kChunkDecay + {warp} * {ATOM * 4}"
        return (
            f"const uint32_t exchanged = shared + kExchanged + {warp} * {2 * BLOCK_ATOM}, {chunk_decay};",
            f"const uint32_t ready = shared + kReady + 8 * {warp}, outside = shared + kOutside + 8 * {warp};",
        )
