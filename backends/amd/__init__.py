"""The AMD backend: tile IR to HIP C++ for gfx90a (MI250) and gfx942 (MI300X), compiled by clang. No AMD GPU has run its kernels yet."""

from attn_mlir.backends import Backend
from attn_mlir.backends.amd import pipeline
from attn_mlir.backends.amd.devices import ON_CPU

BACKEND = Backend(
    name="amd",
    package="attn_mlir.backends.amd",
    device_types=("hip", *ON_CPU),
    tensors={"hip": "cuda", **dict.fromkeys(ON_CPU, "cpu")},
    passes={
        "amd-choose-blocks": "passes.choose_blocks:AmdChooseBlocks",
        "amd-numerics": "passes.numerics:AmdNumerics",
        "amd-slice-values": "passes.slice_values:AmdSliceValues",
        "amd-keep-loops": "passes.keep_loops:KeepLoops",
        "amd-row-values": "passes.row_values:RowValues",
        "amd-split-sums": "passes.split_sums:SplitSums",
    },
    pipelines={"amd-kernel": pipeline.KERNEL},
    translations={
        "amd-kernel": "translate:to_kernel",
        "hip": "translate:to_hip",
        "hip-report": "report:to_report",
    },
    packed=True,
    paged=True,
    schedule="passes.schedule:schedule",
    compile="driver:compile_module",
    derive="driver:compile_derivative",
    describe="target:described",
    tune="tuning.program:TUNER",
    see="seeing:see",
    targets=("gfx90a",),
    ahead="ahead.build:build",
    ahead_with="ahead.build:made_with",
    ahead_sources="ahead.build:sources",
    ahead_project="ahead.build:project",
    doctor="doctor:findings",
)
