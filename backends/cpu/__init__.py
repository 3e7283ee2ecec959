"""The CPU backend: tile IR to vector and scf, to LLVM, compiled in process."""

from attn_mlir.backends import Backend

_KERNEL = "attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile,canonicalize,cse,tile-schedule{target=cpu}"
_LLVM = (
    "cpu-lower-tiles,cpu-expand-math,canonicalize,cse,convert-scf-to-cf,expand-strided-metadata,convert-vector-to-llvm,"
    "func.func(arith-expand{include-bf16=false}),convert-math-to-llvm,convert-math-to-libm,convert-arith-to-llvm,convert-index-to-llvm,"
    "finalize-memref-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)

BACKEND = Backend(
    name="cpu",
    package="attn_mlir.backends.cpu",
    device_types=("cpu",),
    passes={"cpu-lower-tiles": "passes.lower_tiles:LowerTiles", "cpu-expand-math": "passes.expand_math:ExpandMath"},
    pipelines={"cpu-kernel": _KERNEL, "cpu-llvm": _LLVM, "cpu-pipeline": f"{_KERNEL},{_LLVM}"},
    schedule="passes.schedule:schedule",
    compile="driver:compile_module",
)
