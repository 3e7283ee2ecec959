"""Libraries for NVIDIA GPUs; see `gpu.ahead.build`."""

from pathlib import Path

from attn_mlir.backends.ahead.link import find_compiler
from attn_mlir.backends.ahead.request import Library, Request
from attn_mlir.backends.ahead.sources import Project, Sources
from attn_mlir.backends.gpu.ahead.build import Chip, build_for, project_for, sources_for
from attn_mlir.backends.nvidia import driver, pipeline
from attn_mlir.backends.nvidia.compile import NVCC_FLAGS, compile_all, compiler_for, include_folders, target_flags
from attn_mlir.backends.nvidia.derivatives import APART

_HERE = Path(__file__).parent


def build(request: Request, target: str, out: Path, compiler: str | None, version: str) -> Library:
    """See `driver.build_library`."""
    return build_for(_chip(target), request, out, compiler, version)


def sources(request: Request, target: str) -> Sources:
    """See `driver.kernel_sources`."""
    return sources_for(_chip(target), request)


def project(target: str, name: str) -> Project:
    """See `driver.library_project`."""
    quiet = [flag for flag in NVCC_FLAGS if flag not in ("-Xptxas", "-v")]
    return project_for(_chip(target), name, (*target_flags(target), *quiet), include_folders(())[0].glob("*.cuh"))


def _chip(target: str) -> Chip:
    major, minor = divmod(int("".join(filter(str.isdigit, target))), 10)
    return Chip(
        arch=target,
        maker="NVIDIA",
        lower=driver._lower,
        compile=compile_all,
        outline=pipeline.outline(target),
        residual=False,
        options=APART,
        device=_HERE / "attn_device_cuda.h",
        language="cuda",
        flags=(),
        files=(_HERE / "attn_cuda.h", _HERE / "attn_cuda_launch.h"),
        machine=f'{{"{target}", {major}, {minor}}}',
    )


def made_with() -> str:
    """See `Backend.ahead_with`."""
    return f"NVIDIA H100 and H200, by {compiler_for().name} and {find_compiler(None)[0]}"
