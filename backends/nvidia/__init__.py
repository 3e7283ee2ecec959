"""The NVIDIA backend: tile IR to CUDA, by hand-made schedules for Hopper or through TileLang."""

from attn_mlir.backends import Backend
from attn_mlir.backends.nvidia import pipeline

BACKEND = Backend(
    name="nvidia",
    package="attn_mlir.backends.nvidia",
    device_types=("cuda",),
    passes={
        "nvidia-choose-blocks": "passes.choose_blocks:ChooseBlocks",
        "nvidia-keep-max": "passes.keep_max:KeepMax",
        "nvidia-fold-scale": "passes.fold_scale:FoldScale",
        "nvidia-exp2": "passes.exp2:Exp2",
        "nvidia-float-positions": "passes.float_positions:FloatPositions",
        "nvidia-sink-factors": "passes.sink_factors:SinkFactors",
    },
    pipelines={"nvidia-kernel": pipeline.KERNEL},
    translations={
        "nvidia-kernel": "translate:to_kernel",
        "tilelang": "translate:to_tilelang",
        "cuda": "translate:to_cuda",
        "cubin": "translate:to_cubin",
    },
    schedule="passes.schedule:schedule",
    compile="driver:compile_module",
    derive="driver:compile_derivative",
    tune="tuning.program:tune_texts",
)
