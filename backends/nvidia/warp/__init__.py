"""CUDA for sm_90a from kernels of the `warp` dialect: a rule for each op, which knows nothing of attention.

A rule sees its op, the types of its operands and results, and how its operands were printed. `RULES` is the whole printer; an op without a
rule is an error that names it.
"""

from attn_mlir.backends.nvidia.warp import barriers, copies, fragments, memory, products, rows, scalars, structure
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter
from attn_mlir.backends.nvidia.warp.source import kernel_code

RULES: dict[str, Rule] = {
    **structure.RULES,
    **scalars.RULES,
    **barriers.RULES,
    **memory.RULES,
    **copies.RULES,
    **products.RULES,
    **fragments.RULES,
    **rows.RULES,
}

__all__ = ["RULES", "WarpPrinter", "kernel_code"]
