"""Libraries for AMD GPUs; see `gpu.ahead.build`."""

from pathlib import Path

from attn_mlir.backends.ahead.link import find_compiler
from attn_mlir.backends.ahead.request import Library, Request
from attn_mlir.backends.ahead.sources import Project, Sources
from attn_mlir.backends.amd import driver, pipeline
from attn_mlir.backends.amd.clang import find_clang
from attn_mlir.backends.amd.compile import CLANG_FLAGS, FOLDER, compile_all
from attn_mlir.backends.gpu.ahead.build import Chip, build_for, project_for, sources_for

_HERE = Path(__file__).parent


def build(request: Request, target: str, out: Path, compiler: str | None, version: str) -> Library:
    """See `driver.build_library`."""
    return build_for(_chip(target), request, out, compiler, version)


def sources(request: Request, target: str) -> Sources:
    """See `driver.kernel_sources`."""
    return sources_for(_chip(target), request)


def project(target: str, name: str) -> Project:
    """See `driver.library_project`."""
    quiet = [flag for flag in CLANG_FLAGS if not flag.startswith("-R")]
    return project_for(_chip(target), name, (*quiet, f"--offload-arch={target}"), FOLDER.glob("*.h"))


def _chip(target: str) -> Chip:
    return Chip(
        arch=target,
        maker="AMD",
        lower=driver._lower,
        compile=compile_all,
        outline=pipeline.OUTLINE,
        residual=True,
        options="",
        device=_HERE / "attn_device_hip.h",
        language="hip",
        flags=("-ffp-contract=off",),
        files=(_HERE / "attn_hip.h",),
        machine=f'{{"{target}"}}',
    )


def made_with() -> str:
    """See `Backend.ahead_with`."""
    return f"AMD MI210 and MI250, by {find_clang()} and {find_compiler(None)[0]}"
