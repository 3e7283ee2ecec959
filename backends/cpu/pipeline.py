"""The pipelines of the CPU backend as text."""

LLVM = (
    "cpu-lower-tiles,cpu-guard-division,cpu-expand-math,canonicalize,cse,convert-scf-to-cf,convert-vector-to-llvm,"
    "func.func(arith-expand{include-bf16=false}),convert-math-to-llvm,convert-math-to-libm,convert-arith-to-llvm,convert-index-to-llvm,"
    "convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)


# Sixteen query rows fill one vector of f32 on AVX-512 and two on AVX2. More rows reuse each key more often, but measured no
# faster (keys come from the L1 and L2 caches), and waste lanes on short sequences.
_BLOCK_Q, _BLOCK_KV = 16, 64

KERNEL = (
    "attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-chunk-rewrite,attn-guard-empty-rows,"
    f"attn-tile{{block-q={_BLOCK_Q} block-kv={_BLOCK_KV} prefix=f64 sub-chunk=4}},canonicalize,cse,tile-schedule{{target=cpu}}"
)
"""From stage 0 to the scheduled kernel."""

ALL = f"{KERNEL},{LLVM}"
"""From stage 0 to the LLVM dialect."""
