"""The passes that make kernels: which functions they take, and how `tile.kernel` says what a kernel is."""

import abc
from dataclasses import dataclass
from typing import ClassVar

from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.linear_groups import follower_of, gradient_of, leader_of, scan_of
from attn_mlir.passes.regions import find_all, piece, returned_by, walk
from attn_mlir.passes.row_groups import elements_of, row_dots, sum_of, summed_elements
from attn_mlir.passes.tiling.frame import argument_number

_SUMS = ("attn.row_dot", "attn.head_sum", "attn.decay_gradient", "attn.decay_gradient_sum", "attn.decay_sum", "attn.state_scan",
         "attn.transition_scan")  # fmt: skip
_SINGLE = ("attn.chunk", *_SUMS)
_ROWS = ("attn.online", "attn.combine")
_ALL = (*_ROWS, "attn.pairs", "attn.elements", *_SINGLE)
OPS = {"rows": _ROWS, "pairs": ("attn.pairs",), "chunks": ("attn.chunk",), "sums": ("attn.elements", *_SUMS)}
"""The ops of which each of the passes makes kernels."""
_UNREADY = {
    "rows": ("attn.attention", "online", "attn-online-rewrite"),
    "chunks": ("attn.linear_attention", "chunked", "attn-chunk-rewrite"),
}


@dataclass(frozen=True)
class TilePass(Pass):
    """Replaces each function around one of its ops by a `tile` kernel, which takes memrefs, the outputs last."""

    kind: ClassVar[str]

    @abc.abstractmethod
    def build(self, function: ir.Operation, op: ir.Operation) -> bool:
        """Inserts the kernel before the function; False after an error."""

    def sizes(self) -> tuple[int, ...]:
        """The block sizes that the options give."""
        return ()

    def run(self, module: ir.Operation) -> bool:
        if any(size < 1 for size in self.sizes()):
            module.location.emit_error(f"{self.name}: block sizes must be positive, got {' and '.join(map(str, self.sizes()))}")
            return False
        found = self._found(module)
        if found is None:
            return False
        for function, op in found:
            if not self.build(function, op):
                return False
            if "tile.choices" in function.attributes:
                _kernel_before(function).attributes["tile.choices"] = function.attributes["tile.choices"]
            function.erase()
        return True

    def _found(self, module: ir.Operation) -> list[tuple[ir.Operation, ir.Operation]] | None:
        """Functions with the op of each; None after an error."""
        untiled = [view.operation for view in module.regions[0].blocks[0].operations if "tile.kernel" not in view.operation.attributes]
        name, form, needed = _UNREADY.get(self.kind, ("", "", ""))
        ops = [op for each in untiled for op in (each, *walk(each)) if op.name in (name, *_ALL)]
        for op in (op for op in ops if op.name == name):
            op.location.emit_error(f"{self.name}: '{name}' is not in {form} form; run {needed} first")
            return None
        clusters = [op for op in ops if all(of(op) is None for of in (scan_of, leader_of, elements_of, sum_of))]
        found = []
        for op in (op for op in clusters if op.name in OPS[self.kind]):
            function = op.parent
            if function is None or function.name != "func.func" or function.regions[0].blocks[0] != op.block:
                op.location.emit_error(f"{self.name}: '{op.name}' must stand directly in a func.func")
                return None
            together = [other for other in clusters if other.parent == function]
            if len(together) > 1:
                together[1].location.emit_error(f"{self.name}: the function holds several ops to make kernels of; run attn-outline first")
                return None
            if any(size < 1 for size in blocks_of(function) or ()):
                function.location.emit_error(f"{self.name}: 'tile.blocks' must be two positive sizes")
                return None
            found.append((function, op))
        kernels = {ir.StringAttr(function.attributes["sym_name"]).value for function, _ in found}
        for call in find_all(module, "func.call") if found else ():
            callee = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
            if callee in kernels:
                call.location.emit_error(f"{self.name}: @{callee} becomes a kernel of memrefs; run attn-outline{{keep-hosts=false}} first")
                return None
        return found if all(op.name in _ROWS or self._is_cluster(function, op) for function, op in found) else None

    def _is_cluster(self, function: ir.Operation, op: ir.Operation) -> bool:
        """Whether the function returns what the op and its consumers make, from tensors that are its arguments."""
        parts = [follower_of(op), gradient_of(op)] if op.name == "attn.chunk" else []
        consumers = [] if op.name in _SINGLE else [use.owner.operation for use in op.results[0].uses]
        makers = consumers or [op, *(part for part in parts if part is not None)]
        makers += row_dots(op) if op.name == "attn.elements" else []
        for value in returned_by(function):
            if isinstance(value.owner, ir.Block) or value.owner.operation not in makers:
                op.location.emit_error(f"{self.name}: the function of '{op.name}' returns something else, too; run attn-outline first")
                return False
        tensors = [operand for maker in [*makers, *find_all(op, "attn.product", "attn.erase", "attn.write")] for operand in maker.operands]
        made = summed_elements(op)
        inside = [] if made is None else [op.operands[0]]
        values = [*tensors, *op.operands, *([] if made is None else made[0].operands)]
        for value in [each for each in values if each not in inside and isinstance(each.type, ir.RankedTensorType)]:
            if value not in op.results and argument_number(value) is None:
                op.location.emit_error(f"{self.name}: tensors of '{op.name}' must be arguments of the function; run attn-outline first")
                return False
        return True


def blocks_of(function: ir.Operation) -> list[int] | None:
    """Its `tile.blocks`, zeros where these are not two; None where it has none."""
    if "tile.blocks" not in function.attributes:
        return None
    sizes = list(ir.DenseI64ArrayAttr(function.attributes["tile.blocks"]))
    return sizes if len(sizes) == 2 else [0, 0]


def lists_fit(op: ir.Operation, whole: bool, name: str) -> bool:
    """Whether loops have what `attn.key_lists` need; False after an error, which the pass called `name` reports."""
    if whole and piece(op, "attn.key_lists") is not None:
        op.location.emit_error(f"{name}: 'attn.key_lists' are for loops without `whole`; give a mask that reads a table instead")
        return False
    return True


def makers_of(function: ir.Operation) -> list[ir.Operation]:
    """The ops that make what a function returns."""
    return [value.owner.operation for value in returned_by(function)]


def _kernel_before(function: ir.Operation) -> ir.Operation:
    """The kernel that was inserted before the function."""
    operations = [view.operation for view in function.block.operations]
    return operations[operations.index(function) - 1]
