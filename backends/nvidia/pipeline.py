"""The pipelines of the NVIDIA backend as text."""

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.target import HOPPER

TILED = (
    "attn-simplify,gpu-materialize-pairs,nvidia-materialize-rows,nvidia-slice-values,attn-resolve-masks,attn-online-rewrite,attn-fit-range,attn-chunk-rewrite{channel-chunk=32},attn-guard-empty-rows,nvidia-choose-blocks,nvidia-numerics,"
    "attn-tile{block-q=128 block-kv=128 whole=true},canonicalize,cse,attn-choose-kept,"
    "gpu-narrow-bounds,gpu-lazy-rescale{narrow=5},gpu-narrow-comparisons,gpu-exact-jumps,gpu-float-positions,gpu-tanh{keep-approximate=true},gpu-logistic,gpu-sink-factors,gpu-row-terms,gpu-fold-scale,gpu-exp2,gpu-shift-exponents,"
    "gpu-merge-sums,canonicalize,cse,gpu-share-reciprocals,nvidia-turn-differences,nvidia-gather-products,nvidia-float32-products,canonicalize,cse,nvidia-prepare-chunks,nvidia-number-rows,nvidia-join-maps,canonicalize,cse,tile-schedule{target=nvidia}"
)
"""From stage 0 to scheduled kernels."""

SLICED = TILED.partition("nvidia-slice-values,")[2]
"""What follows where kernels have the columns that they see."""

TILING = TILED.partition("nvidia-choose-blocks,")[2].removesuffix(",tile-schedule{target=nvidia}")
"""From chosen blocks to tiled kernels without a schedule."""

KERNEL = f"{TILED},nvidia-load-windows"
"""The same with windows of captured tensors, where schedules have room for them: what is printed."""

SCHEDULE = (
    "warp-assign-layouts,canonicalize,cse,warp-share-dropout,warp-shift-keys,warp-pack-rows,warp-align-tiles,warp-order-tiles,warp-merge-masks,warp-join-loops,canonicalize,cse,"
    "warp-reverse-keys,warp-bound-columns,warp-defer-sums,canonicalize,cse,"
    "warp-stage-rows,warp-slope-rows,warp-stage-windows,warp-specialize,warp-specialize-sums,warp-pipeline-loads,warp-prefetch-loads,warp-delay-transposes,warp-draw-tiles,warp-scale-rows,warp-hold-factors,canonicalize,cse,"
    "warp-round-late,warp-overlap-products,warp-split-maps,warp-read-early,warp-order-products,warp-delay-waits,canonicalize,cse,"
    "warp-stale-maximum,warp-conditional-rescale,canonicalize,cse,"
    "warp-ping-pong,warp-stage-stores,warp-specialize-additions,warp-claim-sums,warp-pipeline-exchange,warp-delay-sums,warp-merge-meetings,warp-pipeline-tiles,warp-tell-numbers,canonicalize,cse"
)
"""From tiled kernels that `tile-schedule` has left to kernels of the `warp` dialect, where their passes apply."""

_OF_HOPPER = (
    *(
        "warp-share-dropout",
        "warp-shift-keys",
        "warp-pack-rows",
        "warp-align-tiles",
        "warp-merge-masks",
        "warp-reverse-keys",
        "warp-bound-columns",
        "warp-defer-sums",
        "warp-hold-factors",
    ),
    *("warp-stale-maximum", "warp-conditional-rescale", "warp-pipeline-tiles", "warp-tell-numbers"),
    *(
        "warp-stage-windows",
        "warp-specialize-sums",
        "warp-specialize-additions",
        "warp-claim-sums",
        "warp-scale-rows",
        "warp-slope-rows",
        "warp-order-products",
        "warp-pipeline-exchange",
        "warp-delay-sums",
        "warp-read-early",
        "warp-merge-meetings",
    ),
)
OTHERS = ",".join(step for step in SCHEDULE.split(",") if step not in _OF_HOPPER)
"""The same for kernels of sm_80, where these passes were not measured."""

TILED_FOR_WARP = TILED.replace("nvidia-choose-blocks", "nvidia-choose-blocks{transpose=false}")
"""From stage 0 to tiled kernels that the passes of the `warp` dialect know."""

WARP = f"{TILED_FOR_WARP},{SCHEDULE}"
"""From stage 0 to kernels of the `warp` dialect."""

WARP_AMPERE = f"{TILED},{OTHERS}".replace("nvidia-choose-blocks", "nvidia-choose-blocks{arch=sm_80 emitter=warp}")
"""The same for sm_80: each pass applies, or says why not."""


def outline(arch: str, deterministic: bool = False) -> str:
    """From a differentiated program to kernels at stage 0, for a chip.

    In a fixed order, sums along diagonals would take a slot for each block of keys: what is scattered is added where it belongs.
    """
    diagonals = "attn-sum-diagonals," if arch == HOPPER.arch and not deterministic else ""
    wider = thresholds.WHOLE_COLUMNS if arch == HOPPER.arch else 0
    chosen = f"nvidia-choose-intervals{{arch={arch}}},attn-simplify,{diagonals}{split(arch)}attn-rows-of-pairs{{wider={wider}}},"
    return f"{chosen}attn-simplify,attn-apply-mods,attn-outline{{gradients-apart=true join-rows=true join-heads=true}}"


def split(arch: str) -> str:
    """The part of it that gives sums which fit into no kernel together kernels of their own."""
    return f"nvidia-split-pairs{{arch={arch}}},"
