"""What the maps of a kernel have to do with each other."""

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.tiles import RegTile
from attn_mlir.mlir import ir


class MapState:
    """Of the maps printed so far, and of those that come. `partial` holds the row values that stay partial sums of each thread."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.partial: set[ir.Value] = set()
        self.targets: dict[ir.Value, RegTile] = {}
        """Registers that a result is to be put into, for results that have a place already."""
        self.ended: dict[ir.Value, ir.Value] = {}
        """Tiles with -inf in the columns that do not exist, and the number of those that do."""
        self.ready: dict[ir.Operation, str] = {}
        """The bits of dropout that were made before their map."""
        self.rows: dict[ir.Value, str] = {}
        """Values of rows that were read before a loop, two for each."""
