"""Makes kernels: loops over blocks of rows or of keys, on tiles."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.linear_roles import follower_of, gradient_of, leader_of, sweep_of
from attn_mlir.passes.regions import find_all, piece, returned_by
from attn_mlir.passes.tiling.chunk_block import Choices
from attn_mlir.passes.tiling.chunk_channels import AT_ONCE, fits_at_once
from attn_mlir.passes.tiling.chunks import build_chunks
from attn_mlir.passes.tiling.combine import CombineBuilder
from attn_mlir.passes.tiling.elements import build_elements, build_row_dot
from attn_mlir.passes.tiling.frame import argument_number
from attn_mlir.passes.tiling.kernel import KernelBuilder
from attn_mlir.passes.tiling.linear_segments import build_decay_sum, build_state_scan
from attn_mlir.passes.tiling.linear_sums import build_decay_gradient, build_head_sum
from attn_mlir.passes.tiling.pairs import build_pairs

_SINGLE = ("attn.row_dot", "attn.chunk", "attn.head_sum", "attn.decay_gradient", "attn.decay_sum", "attn.state_scan")
_CLUSTERS = ("attn.online", "attn.combine", "attn.pairs", "attn.elements", *_SINGLE)
_UNREADY = (("attn.attention", "online", "attn-online-rewrite"), ("attn.linear_attention", "chunked", "attn-chunk-rewrite"))


@dataclass(frozen=True)
class Tile(Pass):
    """Replaces each function holding an `attn.online`, `attn.pairs`, `attn.elements`, `attn.chunk` or the like by a `tile` kernel.

    The kernel takes memrefs, the outputs last. Its attribute `tile.kernel` says how to launch it:

    - `grid`: one program per block of `block-q` rows, per head and batch ("rows", also when absent, and "elements"), or one
      per chunk of keys, key head and batch ("pairs"; tiles have `block-q` keys and `block-kv` queries there). A kernel of pairs
      takes the number of keys in a chunk, a multiple of `block-q`, as one more argument after the outputs. Linear attention: one program
      per block of `block_kv` of v's columns, head and batch, which sweeps over chunks of `block_q` positions ("chunks"; there are `blocks`
      blocks, and where `sequences` numbers the argument with the offsets of sequences, these are the batch; with `segment` = L it is the
      segments of L positions, segment i of N of batch entry b at b N + i). A backward sweep whose products and states a `crossing`
      gradient of log decays takes stores that gradient in their place; one whose states another sweep has, too, stores that one's o.
    - `over`: the number of the argument whose batch, heads and rows make the grid. `score`: the type of sums. `keys`: that of k, where
      tensors are packed and it is not 1.
    - `outputs`, for each output: "store", every element is written; "accumulate", [chunks or blocks, B, H, S, D] that starts as zeros;
      "scatter", [chunks, B, H, ...] that starts as zeros, whose first three dimensions are slots: a program adds in those of its
      own chunk, batch and head, which may be one and the same (stride 0) where `disjoint`, for chunks, heads and batches, is true.
    - `lengths`: the arguments with the lengths of packed sequences, which have lists of work behind the outputs (`tiling.work`).
    - `ragged`, with that option: arguments that are views of packed tensors, [T + 1, H, T, D] with the strides of rows for entries, too,
      that begin T rows before the tensor does. Entry e has as its last rows those before row e, so that a sequence that ends there has no
      rows behind it. A program of "pairs" then has one item of the list, which has one block of keys.
    - `serial`: programs add to the same elements, so that they must run one after the other.

    The function attribute `tile.blocks = array<i64: q, kv>` gives one function other block sizes (for an `attn.chunk`, `kv` is how many of
    v's columns a program works on; without it, all of them); `tile.choices`, a dictionary for the target's schedule, stays on the kernel.
    With `whole`, loops over blocks that the mask keeps run over whole blocks only, whose tiles have static types, and what is left has a
    loop of its own: for targets on which the number of positions in a block costs something. `prefix` is the element type of sums of log
    decays: f32, f64, or "wider" in chunks, f64 where inputs are no narrower than f32 and f32 where they are. Where channels have decays of
    their own, pairs of positions of a chunk are one by one in blocks of `sub-chunk` (of at least 16 in sweeps that round to 16 bits and
    make products, whose differences are gradients), and products of tiles beyond. With `widen`, products of linear attention multiply
    scores even where its inputs have 16 bits. With `flushing`, products take numbers below 2^-14 in f16 as 0: then weights of a sweep with
    products of its output (not where channels have decays), and what enters the state of a backward sweep, are two tiles, rounded and what
    that leaves out. Sweeps with products of bf16 always have two tiles of weights; where channels of v have decays, all that
    round to 16 bits have two of v times weights.
    With the function attribute `tile.decay_channels`, what decays of key channels make of a chunk is one op of that name, or of value
    channels, in sweeps with products, `tile.decay_values`.
    With `exact-carry`, the factor of a state behind a chunk has the type of those sums, too, and is not rounded to that of scores.
    With `slots`, programs of "elements" scatter to slots, as those of "pairs" do, not one after the other.
    """

    name = "attn-tile"
    block_q: int = 64
    block_kv: int = 64
    whole: bool = False
    prefix: str = "f32"
    sub_chunk: int = 16
    widen: bool = False
    flushing: bool = False
    slots: bool = False
    exact_carry: bool = False
    ragged: bool = False

    def run(self, module: ir.Operation) -> bool:
        if self.block_q < 1 or self.block_kv < 1:
            module.location.emit_error(f"{self.name}: block sizes must be positive, got {self.block_q} and {self.block_kv}")
            return False
        if self.prefix not in ("f32", "f64", "wider"):
            module.location.emit_error(f"{self.name}: takes `prefix` as f32, f64 or wider, got '{self.prefix}'")
            return False
        if self.sub_chunk < 1 or self.sub_chunk & (self.sub_chunk - 1):
            module.location.emit_error(f"{self.name}: `sub-chunk` must be a power of two, got {self.sub_chunk}")
            return False
        for name, form, needed in _UNREADY:
            for op in find_all(module, name):
                op.location.emit_error(f"{self.name}: '{name}' is not in {form} form; run {needed} first")
                return False
        found: list[tuple[ir.Operation, ir.Operation]] = []
        for op in [op for op in find_all(module, *_CLUSTERS) if sweep_of(op) is None and leader_of(op) is None]:
            function = op.parent
            if function is None or function.name != "func.func" or function.regions[0].blocks[0] != op.block:
                op.location.emit_error(f"{self.name}: '{op.name}' must stand directly in a func.func")
                return False
            if any(function == other for other, _ in found):
                op.location.emit_error(f"{self.name}: the function holds several ops to make kernels of; run attn-outline first")
                return False
            if any(size < 1 for size in self._blocks(function)):
                function.location.emit_error(f"{self.name}: 'tile.blocks' must be two positive sizes")
                return False
            found.append((function, op))
        kernels = {ir.StringAttr(function.attributes["sym_name"]).value for function, _ in found}
        for call in find_all(module, "func.call"):
            callee = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
            if callee in kernels:
                call.location.emit_error(f"{self.name}: @{callee} becomes a kernel of memrefs; run attn-outline{{keep-hosts=false}} first")
                return False
        if not all(op.name in ("attn.online", "attn.combine") or self._is_cluster(function, op) for function, op in found):
            return False
        for function, op in found:
            if not self._build(function, op):
                return False
            if "tile.choices" in function.attributes:
                _kernel_before(function).attributes["tile.choices"] = function.attributes["tile.choices"]
            function.erase()
        return True

    def _blocks(self, function: ir.Operation) -> list[int]:
        if "tile.blocks" not in function.attributes:
            return [self.block_q, self.block_kv]
        sizes = list(ir.DenseI64ArrayAttr(function.attributes["tile.blocks"]))
        return sizes if len(sizes) == 2 else [0, 0]

    def _build(self, function: ir.Operation, op: ir.Operation) -> bool:
        """Inserts the kernel before the function; False after an error."""
        block_q, block_kv = self._blocks(function)
        if self.whole and op.name in ("attn.online", "attn.pairs") and piece(op, "attn.key_lists") is not None:
            op.location.emit_error(f"{self.name}: 'attn.key_lists' are for loops without `whole`; give a mask that reads a table instead")
            return False
        if op.name == "attn.online":
            if piece(op, "attn.parts") is not None and (self.whole or piece(op, "attn.sequences") is not None):
                op.location.emit_error(f"{self.name}: 'attn.parts' are for tensors that are not packed, without `whole`")
                return False
            return KernelBuilder(function, op, block_q, block_kv, self.whole, self.ragged).build()
        if op.name == "attn.combine":
            return CombineBuilder(function, op).build()
        makers = [value.owner.operation for value in returned_by(function)]
        match op.name:
            case "attn.pairs":
                build_pairs(function, op, makers, (block_q, block_kv), self.whole, self.ragged)
            case "attn.elements":
                build_elements(function, op, makers, block_q, self.slots)
            case "attn.chunk":
                block_kv = self._blocks(function)[1] if "tile.blocks" in function.attributes else None
                at_once = AT_ONCE in function.attributes
                if at_once and not fits_at_once(op):
                    op.location.emit_error(
                        f"{self.name}: '{AT_ONCE}' holds for exponentials of decays of keys' channels, or of values' with products"
                    )
                    return False
                choices = Choices(self.prefix, self.sub_chunk, self.widen, self.flushing, at_once, self.exact_carry)
                return build_chunks(function, op, block_kv, choices)
            case "attn.head_sum":
                return build_head_sum(function, op, makers, block_q)
            case "attn.decay_gradient":
                build_decay_gradient(function, op, makers)
            case "attn.decay_sum":
                build_decay_sum(function, op, self.prefix)
            case "attn.state_scan":
                build_state_scan(function, op)
            case _:
                build_row_dot(function, op, makers, block_q)
        return True

    def _is_cluster(self, function: ir.Operation, op: ir.Operation) -> bool:
        """Whether the function returns what the op and its consumers make, from tensors that are its arguments."""
        parts = [follower_of(op), gradient_of(op)] if op.name == "attn.chunk" else []
        consumers = [] if op.name in _SINGLE else [use.owner.operation for use in op.results[0].uses]
        makers = consumers or [op, *(part for part in parts if part is not None)]
        for value in returned_by(function):
            if isinstance(value.owner, ir.Block) or value.owner.operation not in makers:
                op.location.emit_error(f"{self.name}: the function of '{op.name}' returns something else, too; run attn-outline first")
                return False
        tensors = [operand for maker in [*makers, *find_all(op, "attn.product")] for operand in maker.operands]
        for value in [*tensors, *op.operands]:
            if value not in op.results and isinstance(value.type, ir.RankedTensorType) and argument_number(value) is None:
                op.location.emit_error(f"{self.name}: tensors of '{op.name}' must be arguments of the function; run attn-outline first")
                return False
        return True


def _kernel_before(function: ir.Operation) -> ir.Operation:
    """The kernel that was inserted before the function."""
    operations = [view.operation for view in function.block.operations]
    return operations[operations.index(function) - 1]
