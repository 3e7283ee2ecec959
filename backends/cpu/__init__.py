"""The CPU backend: tile IR to vector and scf, to LLVM, compiled in process."""

from attn_mlir.backends import Backend
from attn_mlir.backends.cpu import pipeline

BACKEND = Backend(
    name="cpu",
    package="attn_mlir.backends.cpu",
    device_types=("cpu",),
    passes={
        "cpu-choose-blocks": "passes.choose_blocks:CpuChooseBlocks",
        "cpu-numerics": "passes.numerics:CpuNumerics",
        "cpu-lower-tiles": "passes.lower_tiles:LowerTiles",
        "cpu-guard-division": "passes.guard_division:GuardDivision",
        "cpu-expand-casts": "passes.expand_casts:ExpandCasts",
        "cpu-expand-math": "passes.expand_math:ExpandMath",
    },
    pipelines={
        "cpu-kernel": pipeline.KERNEL,
        "cpu-llvm": pipeline.LLVM,
        "cpu-pipeline": pipeline.ALL,
    },
    translations={"cpu-kernel": "translate:to_kernel", "llvm": "translate:to_llvm", "object": "translate:to_object"},
    schedule="passes.schedule:schedule",
    compile="driver:compile_module",
    derive="program:compile_derivative",
    tune="tuning.program:TUNER",
    see="seeing:see",
    targets=("cpu",),
    ahead="ahead.build:build",
    ahead_with="ahead.build:made_with",
    ahead_sources="ahead.build:sources",
    ahead_project="ahead.build:project",
    operators="ahead.build:build_operators",
    doctor="doctor:findings",
    packed=True,
    paged=True,
)
