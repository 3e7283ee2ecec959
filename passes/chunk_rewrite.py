"""Turns linear attention into its chunked form: `attn.linear_attention` becomes `attn.chunk`."""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.linear_erase import is_delta
from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.dialects.attn.linear_segments import segment_of
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.derivation.chunk import PIECES, ChunkForm, derive_chunks
from attn_mlir.passes.derivation.delta import derive_delta
from attn_mlir.passes.derivation.emit import FormEmitter
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.linear_groups import leader_of
from attn_mlir.passes.linear_scale import SCALED, read_scale, scale_of
from attn_mlir.passes.regions import block_of, clone_op, find_all, piece

# exp is 0 below, in f32 and f64; sums of such numbers stay finite, so that differences of them are no NaN.
_LOWEST = {"f32": -104.0, "f64": -746.0}


@dataclass(frozen=True)
class ChunkRewrite(Pass):
    """Replaces each `attn.linear_attention` by the `attn.chunk` derived from its recurrence.

    Chunks have `chunk` positions, or `channel-chunk` (0: as many) where channels have decays of their own; those of an interval where
    products are `crossing`; scans of one function that share their states have the same. Log decays are kept from falling to where exp
    gives 0, so that -inf is a decay like any other. An `attn.query` or `attn.key` that only scales becomes a part of the factors, but where
    `attn.erase` or another reader or writer has the same ones. The form of the delta rule is confirmed as that of the rest is.
    """

    name = "attn-chunk-rewrite"
    chunk: int = 64
    channel_chunk: int = 0

    def run(self, module: ir.Operation) -> bool:
        if self.chunk < 1 or self.channel_chunk < 0:
            found = self.chunk if self.chunk < 1 else self.channel_chunk
            module.location.emit_error(f"{self.name}: chunk must be positive, got {found}")
            return False
        found = find_all(module, "attn.linear_attention")
        return all([self._rewrite(op, size) for op, size in zip(found, [self._size(op) for op in found], strict=True)])

    def _size(self, linear: ir.Operation) -> int:
        """The positions of a chunk."""
        leader, interval = leader_of(linear), interval_of(linear)
        if leader is not None:
            return self._size(leader)
        if interval is not None and "crossing" in linear.attributes:
            return interval
        return self.chunk if ir.StringAttr(linear.attributes["channels"]).value == "none" else self.channel_chunk or self.chunk

    def _rewrite(self, linear: ir.Operation, size: int) -> bool:
        interval = interval_of(linear)
        if interval is not None and interval % size:
            linear.location.emit_error(f"{self.name}: states every {interval} positions are not at the ends of chunks of {size}")
            return False
        segment = segment_of(linear)
        if segment is not None and segment % size:
            linear.location.emit_error(f"{self.name}: segments of {segment} positions are not whole chunks of {size}")
            return False
        try:
            derive = derive_delta if is_delta(linear) else derive_chunks
            form, _ = derive(ir.StringAttr(linear.attributes["direction"]).value == "forward")
        except DerivationError as error:
            linear.location.emit_error(f"the recurrence has no chunked form: {error}")
            return False
        attributes = {name: linear.attributes[name] for name in linear.attributes}
        attributes["chunk"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64, linear.context), size)
        types, operands = [r.type for r in linear.results], list(linear.operands)
        with linear.location, ir.InsertionPoint(linear):
            chunk = ir.Operation.create("attn.chunk", results=types, operands=operands, attributes=attributes, regions=1)
        score = score_type(linear)
        with linear.location, ir.InsertionPoint(chunk.regions[0].blocks.append()):
            taken = () if is_delta(linear) else SCALED  # factors serve several readers and writers there
            scales = {mod: scale for mod in taken if (scale := scale_of(linear, mod)) is not None}
            for kept in [view.operation for view in block_of(linear).operations]:
                if kept.name not in scales:
                    clone_op(kept, {})
            _bound_decay(chunk, score)
            _write(form, score, scales)
        for old, new in zip(list(linear.results), list(chunk.results), strict=True):
            old.replace_all_uses_with(new)
        linear.erase()
        return True


def score_type(op: ir.Operation) -> ir.Type:
    """The type in which the scalars of an `attn.linear_attention` or `attn.chunk` are computed."""
    for mod in [view.operation for view in block_of(op).operations if view.operation.regions]:
        return block_of(mod).operations[-1].operation.operands[0].type
    types = [value.type for value in (*op.operands, *op.results)]
    double = any(isinstance(t, ir.RankedTensorType) and isinstance(t.element_type, ir.F64Type) for t in types)
    return ir.F64Type.get(op.context) if double else ir.F32Type.get(op.context)


def _bound_decay(chunk: ir.Operation, score: ir.Type) -> None:
    """Ends `attn.decay` with a maximum; without a decay there is nothing to bound."""
    found = piece(chunk, "attn.decay")
    if found is None and list(ir.DenseI32ArrayAttr(chunk.attributes["operandSegmentSizes"]))[3]:
        index = ir.IndexType.get()
        names = [("g", score), *((name, index) for name in ("b", "h", "t", "d"))]
        found = build.piece("decay", names, lambda g, *_: [g])
    if found is None:
        return
    last = block_of(found).operations[-1].operation
    with last.location, ir.InsertionPoint(last):
        lowest = arith.constant(score, _LOWEST[str(score)])
        last.operands[0] = arith.maximumf(last.operands[0], lowest)


def _write(form: ChunkForm, score: ir.Type, scales: Mapping[str, ir.Value]) -> None:
    """The four pieces, at the insertion point, with the `scales` of mods that they take over."""
    for name, arguments in PIECES.items():

        def body(*values: ir.Value, name: str = name) -> list[ir.Value]:
            known = dict(zip(form.leaves(name), values, strict=True))
            factor = FormEmitter(score, known, names={form.factors[name]: name}).emit(form.factors[name])
            for mod, scale in scales.items():
                if name in SCALED[mod]:
                    with ir.Location.name(name, ir.Location.current):
                        factor = arith.mulf(factor, read_scale(scale))
            return [factor]

        build.piece(name, [(argument, score) for argument in arguments], body)
