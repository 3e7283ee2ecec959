"""CUDA from kernels of the `warp` dialect: a rule for each op, which knows nothing of attention.

A rule sees its op, the types of its operands and results, and how its operands were printed. `RULES` is the whole printer for sm_90a,
`AMPERE_RULES` what of it sm_80 can do; an op without a rule is an error that names it.
"""

from attn_mlir.backends.nvidia.warp.chips import AMPERE_RULES, RULES, rules_for
from attn_mlir.backends.nvidia.warp.emitter import emit, plan
from attn_mlir.backends.nvidia.warp.printer import WarpPrinter
from attn_mlir.backends.nvidia.warp.source import kernel_code

__all__ = ["AMPERE_RULES", "RULES", "WarpPrinter", "emit", "kernel_code", "plan", "rules_for"]
