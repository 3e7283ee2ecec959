"""The pipelines of the AMD backend as text."""

KERNEL = (
    "attn-simplify,gpu-materialize-pairs,gpu-materialize-rows,amd-slice-values,attn-resolve-masks,attn-online-rewrite,attn-fit-range,attn-chunk-rewrite,attn-guard-empty-rows,"
    "amd-choose-blocks,amd-numerics,"
    "attn-tile{block-q=128 block-kv=64 whole=true},amd-keep-loops,canonicalize,cse,attn-choose-kept,gpu-narrow-bounds,"
    "gpu-lazy-rescale{slack=3 scale-log2=12},gpu-exact-jumps,gpu-float-positions,gpu-sink-factors,gpu-fold-scale,gpu-exp2,"
    "amd-row-values,attn-expand-dropout,canonicalize,cse,tile-load-windows{products=true},tile-schedule{target=amd}"
)
"""From stage 0 to scheduled kernels."""
OUTLINE = "amd-split-sums,attn-rows-of-pairs,attn-simplify,attn-apply-mods,attn-outline{gradients-apart=true}"
"""From a differentiated program to kernels at stage 0."""
