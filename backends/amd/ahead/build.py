"""Libraries for AMD GPUs; see `gpu.ahead.build`."""

from pathlib import Path

from attn_mlir.backends.ahead.link import find_compiler
from attn_mlir.backends.ahead.request import Library, Request
from attn_mlir.backends.amd import driver, pipeline
from attn_mlir.backends.amd.clang import find_clang
from attn_mlir.backends.amd.compile import compile_all
from attn_mlir.backends.gpu.ahead.build import Chip, build_for

_HERE = Path(__file__).parent


def build(request: Request, target: str, out: Path, compiler: str | None, version: str) -> Library:
    """See `driver.build_library`."""
    chip = Chip(
        arch=target,
        maker="AMD",
        lower=driver._lower,
        compile=compile_all,
        outline=pipeline.OUTLINE,
        remainder=True,
        device=_HERE / "attn_device_hip.h",
        language="hip",
        flags=("-ffp-contract=off",),
        files=(_HERE / "attn_hip.h",),
        machine=f'{{"{target}"}}',
    )
    return build_for(chip, request, out, compiler, version)


def made_with() -> str:
    """See `Backend.ahead_with`."""
    return f"AMD MI210 and MI250, by {find_clang()} and {find_compiler(None)[0]}"
