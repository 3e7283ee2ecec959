"""Reads generated kernels with clang's front end, without a GPU or its toolkit: what it accepts has consistent types.

`test/Inputs/cuda` declares what kernels use of CUDA, with the overloads of `min` and `max` that CUDA has.
"""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attn_mlir.api.rows import softmax
from attn_mlir.backends.amd import codegen as amd
from attn_mlir.backends.amd import pipeline as amd_pipeline
from attn_mlir.backends.amd.clang import find_host_clang
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.compiled_kernels import outlined
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.host import read_host
from attn_mlir.backends.nvidia import codegen as nvidia
from attn_mlir.backends.nvidia import pipeline as nvidia_pipeline
from attn_mlir.backends.nvidia.tilelang import program_of
from attn_mlir.backends.program import function_named, prepare_derivative
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, Traced, trace
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from contexts import loaded_context

_ROOT = Path(__file__).parents[2]
CUDA = ("-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_90a", "-nocudainc", "-nocudalib", f"-I{_ROOT / 'test/Inputs/cuda'}")
NVRTC = ("-DATTN_NVRTC", f"-I{_ROOT / 'backends/nvidia/nvrtc'}", "-include", str(_ROOT / "test/Inputs/cuda/cuda.h"), *CUDA)
"""With the headers that NVRTC gets, which have no more of CUDA's than kernels use."""
HIP = ("-x", "hip", "--offload-device-only", "--offload-arch=gfx90a", "-nogpuinc", "-nogpulib", f"-I{_ROOT / 'backends/amd'}")


def complaints(code: KernelCode) -> str:
    """What clang says of a kernel that it refuses; empty where it takes it, and for what TileLang makes."""
    if code.language not in ("cuda", "hip"):
        return ""
    flags = NVRTC if code.language == "cuda" else HIP
    command = [find_host_clang(), *flags, "-fsyntax-only", "-std=c++17", "-Wno-everything", "-"]
    made = subprocess.run(command, input=code.source, capture_output=True, text=True, check=False)
    return made.stderr if made.returncode else ""


def traced(
    mask: Callable[..., Any] | None = None, score: Callable[..., Any] | None = None, columns: int = 64, row: Any = softmax, **mods: Any
) -> Traced:
    """An attention of f16 with these functions."""
    form = Definition(row, score_mod=score, mask_mod=mask, scale=0.125, **mods)
    return trace(form, Inputs("f16", columns, columns))


def kernels(program: Traced, functions: Sequence[str] = ("", "bwd"), vendors: Sequence[str] = ("nvidia", "amd")) -> list[KernelCode]:
    """The kernels of an attention and of its gradient with respect to all that it reads, for GPUs of both makers.

    What TileLang would make is left as its program. Raises what compiling raises.
    """
    floats = [f"arg{3 + i}" for i, each in enumerate(program.captures) if each.kind == "tensor" and each.element in ("f16", "f32")]
    made = []
    for vendor in vendors:
        for function in functions:
            made += _kernels(program.text, function, ["q", "k", "v", *floats], vendor)
    return made


def _kernels(text: str, function: str, wrt: Sequence[str], vendor: str) -> list[KernelCode]:
    backend, pipeline = (nvidia, nvidia_pipeline) if vendor == "nvidia" else (amd, amd_pipeline)
    outline = nvidia_pipeline.outline("sm_90a") if vendor == "nvidia" else amd_pipeline.OUTLINE
    name, prepare = prepare_derivative(function, wrt, outline, residual=vendor == "amd")
    with loaded_context():
        module = ir.Module.parse(text)
        Pipeline.parse(prepare, registry()).run(module)
        host = read_host(function_named(module, name))
        outlined(module, host, {})
        Pipeline.parse(pipeline.KERNEL, registry()).run(module)
        return [_emit(function_named(module, step.kernel), backend.emit) for step in host.steps if step.kernel]


def _emit(kernel: ir.Operation, emit: Callable[[ir.Operation], KernelCode]) -> KernelCode:
    if attributes.read(kernel, attributes.SCHEDULE)["emitter"] != "tilelang":
        return emit(kernel)
    program = program_of(kernel)
    compile(program.text, program.name, "exec")
    return KernelCode(program.name, program.name, "", (), program.threads, 0, language="tilelang", program=program.text)
