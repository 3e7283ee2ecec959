"""Shared memory of a scan: stages of tiles and factors of rows, weights, and sums on their way out."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator, of_warps
from attn_mlir.backends.nvidia.hopper.scan_common import ATOM, ATOM_BYTES, CHUNK
from attn_mlir.backends.nvidia.hopper.scan_patterns import InputTile
from attn_mlir.backends.nvidia.hopper.scan_read import ChunkScan
from attn_mlir.backends.nvidia.hopper.tiles import tile_bytes

_ROW = CHUNK * 4


@dataclass(frozen=True)
class StageTile:
    """A tile of an input in each stage: `offset` within the stage."""

    source: InputTile
    offset: int
    own: bool
    """Whether each warpgroup has a swizzle atom of its own."""

    @property
    def atoms(self) -> int:
        return self.source.columns // ATOM


class ScanLayout:
    """Where things are."""

    def __init__(self, memory: SharedAllocator, scan: ChunkScan, stages: int) -> None:
        self.memory, self.stages = memory, stages
        self.warpgroups = scan.values // ATOM
        self.tiles: dict[str, StageTile] = {}
        offset = 0
        for name, source in scan.inputs.items():
            self.tiles[name] = StageTile(source, offset, name in ("v", "factor"))
            offset += tile_bytes(CHUNK, source.columns)
        self.loaded_bytes = offset
        self.rows: dict[str, int] = {}
        of_rows = ["output_decay"] if scan.rows else []
        some = {"left": scan.left, "right": scan.right, "result": scan.rows.result, "skip": scan.rows.skip} if scan.rows else {}
        for name in ("sums", *of_rows, "input_decay", *(name for name, op in some.items() if op is not None)):
            self.rows[name] = len(self.rows) * _ROW
        self.rows_bytes = len(self.rows) * _ROW
        memory.tile("kStages", stages * self.loaded_bytes)
        products = scan.rows is not None and scan.rows.products is not None
        # A warpgroup that is ahead writes weights of the next chunk while another multiplies those of this one, unless they meet before.
        twice = self.warpgroups > 1 and not products
        size = ATOM_BYTES * (2 if scan.rows is not None and scan.rows.residual is not None else 1)
        pieces = [f"shared + kWeights + {at}" if at else "shared + kWeights" for at in range(0, size, ATOM_BYTES)]
        self.weights = [f"{piece} + (number & 1) * {size}" if twice else piece for piece in pieces]
        if scan.rows is not None:
            memory.tile("kWeights", (1 + twice) * size)
        memory.barrier("kFull", stages, f"1 + {of_warps(1)}")
        memory.barrier("kFree", stages, f"attn::arrivals_of({self.consumers})")
        memory.slot("kRows", stages * self.rows_bytes)
        if products:
            memory.slot("kSums", 4 * self.warpgroups * _ROW)
            memory.slot("kOwn", _ROW)
        if scan.rows is not None and scan.rows.diagonal_sums is not None:
            memory.slot("kDiagonalSums", 4 * self.warpgroups * _ROW)

    def addresses(self) -> list[str]:
        """Declarations of the addresses of a stage's tiles and rows."""
        return [
            f"const uint32_t at = shared + kStages + stage * {self.loaded_bytes};",
            f"const uint32_t rows = shared + kRows + stage * {self.rows_bytes};",
        ]

    @property
    def consumers(self) -> int:
        """Threads of all warpgroups."""
        return 128 * self.warpgroups
