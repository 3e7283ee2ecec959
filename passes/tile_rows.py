"""Makes kernels of attentions: a loop over blocks of keys for each block of query rows."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import piece
from attn_mlir.passes.tiling.combine import CombineBuilder
from attn_mlir.passes.tiling.kernel import KernelBuilder
from attn_mlir.passes.tiling.narrow import product_types
from attn_mlir.passes.tiling.numerics import numerics_of
from attn_mlir.passes.tiling.tile_pass import TilePass, blocks_of, lists_fit


@dataclass(frozen=True)
class TileRows(TilePass):
    """Replaces each function holding an `attn.online`, or an `attn.combine`, by a `tile` kernel over blocks of query rows.

    A program has `block-q` rows of one head and batch entry, and passes over their keys in blocks of `block-kv`; the attribute
    `tile.blocks = array<i64: q, kv>` gives one function other sizes. With `whole`, loops over blocks that the mask keeps run over whole
    blocks only, whose tiles have static types, and what is left has a loop of its own: for targets on which the number of positions in a
    block costs something. An `attn.combine` has one row a program.

    The kernel takes memrefs, the outputs last. Its attribute `tile.kernel` says how to launch it, as that of every kernel:

    - `grid`: one program per block of `block_q` rows, per head and batch ("rows", also when absent, and "elements"); or as
      `attn-tile-pairs` ("pairs") and `attn-tile-chunks` ("chunks") say.
    - `over`: the number of the argument whose batch, heads and rows make the grid. `score`: the type of sums. `keys`: that of k, where
      tensors are packed and it is not 1.
    - `outputs`, for each output: "store", every element is written; "accumulate", [chunks or blocks, B, H, S, D] that starts as zeros;
      "scatter", [chunks, B, H, ...] that starts as zeros, whose first three dimensions are slots: a program adds in those of its
      own chunk, batch and head, which may be one and the same (stride 0) where `disjoint`, for chunks, heads and batches, is true.
    - `lengths`, `begins`: the arguments with these of packed sequences; a list of work (`tiling.work`) follows the outputs.
    - `ragged`, with `whole`: arguments that are views of packed tensors, [T + 1, H, T, D] with the strides of rows for entries, too,
      that begin T rows before the tensor does. Entry e has as its last rows those before row e, so that a sequence that ends there has no
      rows after it, which is what copy engines ask for.
    - `paged`, with that option: arguments that lie in pages, [pages, H, size, D], which loads take as [sequences, H, positions, D]:
      position p of sequence b is row p % size of the page that the argument with number `table` has at [b, p / size].
    - `serial`: programs add to the same elements, so that they must run one after the other.

    `tile.choices` of a function, a dictionary for the target's schedule, stays on the kernel.
    """

    name = "attn-tile-rows"
    kind = "rows"
    block_q: int = 64
    block_kv: int = 64
    whole: bool = False

    def sizes(self) -> tuple[int, ...]:
        return (self.block_q, self.block_kv)

    def build(self, function: ir.Operation, op: ir.Operation) -> bool:
        if op.name == "attn.combine":
            return CombineBuilder(function, op, self.whole).build()
        if not lists_fit(op, self.whole, self.name):
            return False
        if piece(op, "attn.parts") is not None and (self.whole or piece(op, "attn.sequences") is not None):
            op.location.emit_error(f"{self.name}: 'attn.parts' are for tensors that are not packed, without `whole`")
            return False
        numerics = numerics_of(function, self.name)
        if numerics is None:
            return False
        return KernelBuilder(function, op, blocks_of(function) or self.sizes(), product_types(op, numerics), self.whole).build()
