"""The pipelines of the CPU backend as text."""

from attn_mlir.backends.cpu.target import CpuTarget

LLVM = (
    "cpu-lower-tiles,cpu-expand-math,canonicalize,cse,convert-scf-to-cf,convert-vector-to-llvm,"
    "func.func(arith-expand{include-bf16=false}),convert-math-to-llvm,convert-math-to-libm,convert-arith-to-llvm,convert-index-to-llvm,"
    "convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)


def kernel(target: CpuTarget) -> str:
    """From stage 0 to the scheduled kernel. A block has as many query rows as keep the vector units busy."""
    rows = 32 if target.registers == 32 else 16
    return (
        "attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,"
        f"attn-tile{{block-q={rows} block-kv=64}},canonicalize,cse,tile-schedule{{target=cpu}}"
    )
