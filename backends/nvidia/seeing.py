"""What a report shows of programs for NVIDIA GPUs."""

from collections.abc import Sequence
from dataclasses import replace

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.seeing import Known, see_kernels
from attn_mlir.backends.nvidia import codegen, pipeline
from attn_mlir.backends.nvidia.compile import compile_all
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.nvidia.driver import current_target
from attn_mlir.backends.nvidia.emulation import CHIPS, EMULATED
from attn_mlir.backends.nvidia.emulation import seeing as emulated
from attn_mlir.backends.seen import Seen, Timeline

_PRINTED = (
    'most kernels for device="cuda" are printed with a schedule that their printer knows, which is not IR; '
    f'report(..., device="{EMULATED}") shows the timeline of the kernel of the warp dialect, where one is formed'
)


def see(source: str, function: str, wrt: Sequence[str], binaries: bool, device: str = "cuda") -> Seen:
    """See `Backend.see`."""
    if device in CHIPS:
        return emulated.see(source, function, wrt, _compiled if binaries else None, device)
    arch = current_target().arch
    prepared = derivative(function, wrt, arch)
    seen = see_kernels(source, prepared, {"arch": arch}, pipeline.KERNEL, "NVIDIA", codegen.emit, _compiled if binaries else None)
    return replace(seen, timelines=(Timeline("", why=_PRINTED),))


def _compiled(codes: Sequence[KernelCode]) -> list[Known]:
    """What ptxas said of kernels."""
    return [
        [
            ("registers", f"{binary.registers} a thread; {binary.spills} bytes of spills, {binary.stack} bytes of stack"),
            ("static shared memory", f"{binary.shared:,} bytes"),
            ("code", f"{len(binary.code):,} bytes"),
        ]
        for binary in compile_all(codes)
    ]
