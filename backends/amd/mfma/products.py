"""Prints matrix products of tiles: `tile.dot`, `tile.dot_add`, `tile.dot_rescale`."""

from attn_mlir.backends.amd.mfma.core import MfmaCore
from attn_mlir.backends.amd.mfma.tiles import MATRIX, STEP, LdsTile, MfmaFragment, MfmaRow, PackedTile
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class MfmaProducts:
    """The left operand of a product is in registers, the right one in shared memory."""

    def __init__(self, core: MfmaCore) -> None:
        self.core = core

    def print(self, op: ir.Operation) -> None:
        """Prints a product."""
        core = self.core
        *start, left, right = (core.tiles.get(value) for value in op.operands)
        if not isinstance(left, PackedTile) or not isinstance(right, LdsTile):
            raise UnsupportedError(f"amd: a product takes rows in registers and a tile in shared memory ({source_line(op.location)})")
        by_rows = ir.BoolAttr(op.attributes["transpose_b"]).value
        at, outputs, terms = (right.rows_at, right.rows, right.columns) if by_rows else (right.columns_at, right.columns, right.rows)
        if at is None or left.columns != terms or left.element != right.element:
            raise UnsupportedError(f"amd: the operands of a product do not fit each other ({source_line(op.location)})")
        core.waiting.discard(left.name)
        if not start:
            target = core.fragment("s", outputs, "0.0f")
        elif isinstance(start[0], MfmaFragment):
            target = start[0]
        else:
            raise UnsupportedError(f"amd: a product is added to a tile that is not in registers ({source_line(op.location)})")
        if len(start) > 1:
            if not isinstance(start[1], MfmaRow):
                raise UnsupportedError(f"amd: a product rescales rows by something that is no row ({source_line(op.location)})")
            core.writer.line(f"attn::rescale({target.name}, {start[1].name});")
        factor = left.name in core.factors
        if core.scaled.setdefault(target.name, factor) != factor:
            raise UnsupportedError(f"amd: a sum has weights with a factor and others without ({source_line(op.location)}): use the CPU")
        how = MATRIX[left.element]
        sizes = f"{outputs // STEP}, {terms // 16}, {how.chunks(terms)}"
        core.writer.line(f"attn::product_{how.suffix}<{sizes}>({target.name}, memory + {at}, {left.name});")
        part = how.part**2
        if start and core.parts.setdefault(target.name, part) != part:
            raise UnsupportedError(f"amd: a sum has products of several types ({source_line(op.location)}): use the CPU")
        if not start and part != 1.0:
            core.writer.line(f"attn::multiply({target.name}, {1.0 / part!r}f);")
        core.tiles[op.results[0]] = target
