"""Gives every tile of a tiled kernel its place: the first kernel of the `warp` dialect, in which nothing overlaps."""

from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia.forming.refusal import Refused, refuse
from attn_mlir.backends.nvidia.forming.synchronous_pairs import former_of
from attn_mlir.backends.nvidia.target import HOPPER, TARGETS
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all


@dataclass(frozen=True)
class AssignLayouts(Pass):
    """Replaces a tiled function by a `warp.kernel`: what is loaded lies in shared memory, what is computed in registers of products.

    All warpgroups have one role, with 64 rows of a block each; a loop hands tiles out. The first warpgroup copies what is loaded into a
    ring of one stage, all wait for it, and give it back after its last use; every product (wgmma) is waited for. A reduction is one of a
    thread's parts, then one over the threads of a row. Columns that do not exist (of a block of keys that ends early) take part in no
    reduction and no product.

    On sm_80 each of 4 or 8 warps multiplies its own 16 or 32 rows (mma.sync), and copies its share of what is loaded (cp.async); all meet
    before a stage is filled and when it is. There are no barriers with phases, and nothing is given back. In kernels over pairs they write
    weights to shared memory, meet, and each warpgroup makes its share of the sums over keys. `arch`, or without it what `tile.schedule` has
    under this name, is the chip, sm_90a if neither says.

    `tile.schedule` becomes `warp.schedule`, the choices that later passes read. A function stays as it is, with the reason in
    `warp.refused`, where its programs are no blocks of rows, a product's second factor is computed, rows do not fit swizzled tiles, or an
    op has no form on fragments yet.
    """

    name = "warp-assign-layouts"
    arch: str = ""

    def run(self, module: ir.Operation) -> bool:
        if self.arch not in ("", *TARGETS):
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
            arch = self.arch or attributes.read(function, attributes.SCHEDULE).get("arch", HOPPER.arch)
        except ValueError as error:
            raise Refused(str(error)) from None
        target = TARGETS.get(str(arch))
        if target is None:
            raise Refused(f"there is no description of '{arch}' (known: {', '.join(TARGETS)})")
        former_of(function, target)(function, target).form()
