"""Libraries for NVIDIA GPUs; see `gpu.ahead.build`."""

from pathlib import Path

from attn_mlir.backends.ahead.link import find_compiler
from attn_mlir.backends.ahead.request import Library, Request
from attn_mlir.backends.gpu.ahead.build import Chip, build_for
from attn_mlir.backends.nvidia import driver, pipeline
from attn_mlir.backends.nvidia.compile import compile_all, compiler_for

_HERE = Path(__file__).parent


def build(request: Request, target: str, out: Path, compiler: str | None, version: str) -> Library:
    """See `driver.build_library`."""
    major, minor = divmod(int("".join(filter(str.isdigit, target))), 10)
    chip = Chip(
        arch=target,
        maker="NVIDIA",
        lower=driver._lower,
        compile=compile_all,
        outline=pipeline.outline(target),
        remainder=False,
        device=_HERE / "attn_device_cuda.h",
        language="cuda",
        flags=(),
        files=(_HERE / "attn_cuda.h", _HERE / "attn_cuda_launch.h"),
        machine=f'{{"{target}", {major}, {minor}}}',
    )
    return build_for(chip, request, out, compiler, version)


def made_with() -> str:
    """See `Backend.ahead_with`."""
    return f"NVIDIA H100 and H200, by {compiler_for().name} and {find_compiler(None)[0]}"
