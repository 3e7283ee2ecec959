"""The pipelines of the NVIDIA backend as text."""

KERNEL = (
    "attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,nvidia-choose-blocks,"
    "attn-tile{block-q=128 block-kv=128 whole=true},canonicalize,cse,nvidia-keep-max,nvidia-float-positions,nvidia-sink-factors,"
    "nvidia-fold-scale,nvidia-exp2,canonicalize,cse,"
    "tile-schedule{target=nvidia}"
)
"""From stage 0 to scheduled kernels."""
