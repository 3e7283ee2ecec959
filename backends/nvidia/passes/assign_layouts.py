"""Gives every tile of a tiled kernel its place: the first kernel of the `warp` dialect, in which nothing overlaps."""

from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia.forming.pairs import former_of
from attn_mlir.backends.nvidia.forming.refusal import Refused, refuse
from attn_mlir.backends.nvidia.target import TARGETS
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all


@dataclass(frozen=True)
class AssignLayouts(Pass):
    """Replaces a tiled function by a `warp.kernel`: what is loaded lies in shared memory, what is computed in registers of wgmma.

    All warpgroups have one role, with 64 rows of a block each; a loop hands tiles out. The first warpgroup copies what is loaded into a
    ring of one stage, all wait for it, and give it back after its last use; every product is waited for. A reduction is one of a thread's
    parts, then one over the threads of a row. Columns that do not exist (of a block of keys that ends early) take part in no reduction
    and no product.

    `tile.schedule` becomes `warp.schedule`, the choices that later passes read. A function stays as it is, with the reason in
    `warp.refused`, where its programs are no blocks of rows, a product's second factor is computed, rows do not fit swizzled tiles, or an
    op has no form on fragments yet.
    """

    name = "warp-assign-layouts"
    arch: str = "sm_90a"

    def run(self, module: ir.Operation) -> bool:
        if self.arch not in TARGETS:
            module.location.emit_error(f"{self.name}: `arch` must be one of {', '.join(TARGETS)}, got '{self.arch}'")
            return False
        for function in [op for op in find_all(module, "func.func") if "tile.kernel" in op.attributes]:
            try:
                self._form(function)
            except Refused as reason:
                refuse(function, self.name, reason)
            else:
                function.erase()
        return True

    def _form(self, function: ir.Operation) -> None:
        try:
            arch = attributes.read(function, attributes.SCHEDULE).get("arch", self.arch)
        except ValueError as error:
            raise Refused(str(error)) from None
        target = TARGETS.get(str(arch))
        if target is None or not target.bulk_copies:
            raise Refused(f"{arch} has no products of warpgroups")
        former_of(function)(function, target).form()
