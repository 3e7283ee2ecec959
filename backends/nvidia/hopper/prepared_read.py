"""What chunk scans have in common whose channels have decays of their own: key channels and value channels.

Some warps prepare chunks of q, k, v and log decays, others hold the state and multiply.
"""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body
from attn_mlir.backends.nvidia.hopper.scan_common import VALUES, ScanFrame, check_columns, need_all
from attn_mlir.backends.nvidia.hopper.scan_patterns import InputTile, made, need, reads_of, sources
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import ir

KEYS = (64, 128)
"""Columns of q and k."""


@dataclass(kw_only=True)
class PreparedScan(ScanFrame):
    """One kernel. `made` is the op that applies decays to a chunk, `steps` the map of log decays, of tiles that `decays` loads (None: of
    none). `store` puts rows of o in memory; None where they are of no use.
    """

    made: ir.Operation
    q: InputTile
    steps: ir.Operation
    decays: ir.Operation | None
    store: ir.Operation | None

    @property
    def reverse(self) -> bool:
        """Whether the scan goes from the last chunk to the first."""
        return flag(self.made, "reverse")

    @property
    def inputs(self) -> dict[str, InputTile]:
        """The tiles of 16 bits that a chunk loads, by name."""
        return {"q": self.q, "k": self.k, "v": self.v}

    @property
    def wide(self) -> bool:
        """Whether rows of o may be f32."""
        return False

    @property
    def outputs(self) -> dict[str, ir.Operation]:
        """The stores of a chunk, by name."""
        return {} if self.store is None else {"rows": self.store}

    @property
    def loads(self) -> list[ir.Operation]:
        """The loads of a chunk."""
        return [*(each.load for each in self.inputs.values()), *([] if self.decays is None else [self.decays])]

    def check(self, positions: int, inner: list[ir.Operation], used: list[ir.Operation | None]) -> None:
        """Sizes and types are those of the generated code, for chunks of so many positions, and no op of the loop, `inner`, is left over.
        Raises OtherKernelError where that is not so.
        """
        tiles = [ir.RankedTensorType(each.load.results[0].type) for each in self.inputs.values()]
        check_columns(self.keys, self.values, KEYS, VALUES, self.k.load)
        need(all(type_.shape[0] == positions for type_ in tiles))
        self.check_memory(self.inputs.values(), self.store, self.outputs.values(), self.wide)
        need(all(list(store.operands)[4:6] == [self.begin, self.count] for store in self.outputs.values()))
        if self.decays is not None:
            need(str(ir.RankedTensorType(self.decays.results[0].type).element_type) in ("f32", "f16", "bf16"))
            need(list(self.decays.operands)[3:5] == [self.begin, self.count])
        need_all(inner, [op for op in used if op is not None])


def steps_of(decays: ir.Value) -> tuple[ir.Operation, ir.Operation | None]:
    """The map that log decays are, and the load of the tile that it reads (None: of none). Raises OtherKernelError for other tiles."""
    steps = made(decays, "tile.map")
    loaded = sources(steps, 2)
    need(len(loaded) <= 1 and all(list(read.operands)[1:] == list(body(steps).arguments) for read in reads_of(steps)))
    return steps, made(loaded[0], "tile.load") if loaded else None
