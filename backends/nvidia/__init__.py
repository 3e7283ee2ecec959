"""The NVIDIA backend: tile IR to CUDA, by hand-made schedules for Hopper or through TileLang."""

from attn_mlir.backends import Backend
from attn_mlir.backends.nvidia import pipeline

BACKEND = Backend(
    name="nvidia",
    package="attn_mlir.backends.nvidia",
    device_types=("cuda", "cuda-emulated"),
    tensors={"cuda-emulated": "cpu"},
    passes={
        "nvidia-choose-blocks": "passes.choose_blocks:ChooseBlocks",
        "nvidia-choose-intervals": "passes.choose_intervals:ChooseIntervals",
        "nvidia-float32-products": "passes.float32_products:Float32Products",
        "warp-assign-layouts": "passes.assign_layouts:AssignLayouts",
        "warp-order-tiles": "passes.order_tiles:OrderTiles",
        "warp-join-loops": "passes.join_loops:JoinLoops",
        "warp-specialize": "passes.specialize_warps:SpecializeWarps",
        "warp-pipeline-loads": "passes.pipeline_loads:PipelineLoads",
        "warp-overlap-products": "passes.overlap_products:OverlapProducts",
        "warp-delay-waits": "passes.delay_waits:DelayWaits",
        "warp-ping-pong": "passes.ping_pong:PingPong",
        "warp-stage-stores": "passes.stage_stores:StageStores",
        "warp-conditional-rescale": "passes.conditional_rescale:ConditionalRescale",
    },
    pipelines={"nvidia-kernel": pipeline.KERNEL, "nvidia-warp": pipeline.WARP},
    translations={
        "nvidia-kernel": "translate:to_kernel",
        "tilelang": "translate:to_tilelang",
        "cuda": "translate:to_cuda",
        "cubin": "translate:to_cubin",
        "cubin-report": "translate:to_report",
        "warp": "warp.translate:to_warp",
        "warp-cuda": "warp.translate:to_cuda",
        "warp-cubin": "warp.translate:to_cubin",
        "warp-cubin-report": "warp.translate:to_report",
    },
    schedule="passes.schedule:schedule",
    compile="driver:compile_module",
    derive="driver:compile_derivative",
    slow="driver:slow",
    describe="target:described",
    tune="tuning.program:TUNER",
    see="seeing:see",
    targets=("sm_90a",),
    ahead="ahead.build:build",
    ahead_with="ahead.build:made_with",
    doctor="doctor:findings",
)
