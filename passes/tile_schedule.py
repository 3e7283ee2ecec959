"""Adds a target's choices to tiled kernels."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all


@dataclass(frozen=True)
class TileSchedule(Pass):
    """Decides, for one target, where tiles live, how they are laid out and how the loops run.

    The choices are attributes on the kernel and its ops; what they mean is the target's affair.
    """

    name = "tile-schedule"
    target: str = "cpu"

    def run(self, module: ir.Operation) -> bool:
        # Backends import passes; they are looked up only when a schedule is asked for.
        from attn_mlir.backends import load_backends

        backend = load_backends().get(self.target)
        if backend is None or backend.schedule is None:
            known = ", ".join(sorted(name for name, b in load_backends().items() if b.schedule))
            module.location.emit_error(f"{self.name}: no schedule for target '{self.target}' (targets: {known})")
            return False
        kernels = [op for op in find_all(module, "func.func") if "tile.kernel" in op.attributes]
        return all(_has_blocks(kernel) and backend.load(backend.schedule)(kernel) for kernel in kernels)


def _has_blocks(kernel: ir.Operation) -> bool:
    """Whether the kernel says how large its blocks are; an error tells that it does not."""
    sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
    missing = next((name for name in ("block_q", "block_kv") if name not in sizes), None)
    if missing is not None:
        kernel.location.emit_error(f"tile-schedule: `tile.kernel` of this function lacks `{missing}`")
    return missing is None
