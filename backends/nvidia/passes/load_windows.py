"""Makes tiles of what a scheduled kernel reads of captured tensors, where its schedule has room for them."""

from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import SCHEDULE
from attn_mlir.backends.nvidia.hopper.plan_windows import make_windows
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all


@dataclass(frozen=True)
class NvidiaLoadWindows(Pass):
    """In every kernel whose schedule has stages for windows (`windows`), does what `tile-load-windows{products=true}` does, in kernels of
    pairs with `turned=true`. In those that passes of the `warp` dialect form, `warp-stage-windows` does it.

    `tile-schedule` has tried it: where windows do not fit, kernels go on reading element by element, and their schedules say why
    (`gathers`).
    """

    name = "nvidia-load-windows"

    def run(self, module: ir.Operation) -> bool:
        for kernel in find_all(module, "func.func"):
            fields = attributes.read(kernel, SCHEDULE) if SCHEDULE in kernel.attributes else {}
            if "windows" in fields and fields.get("emitter") != "warp":
                make_windows(kernel)
        return True
