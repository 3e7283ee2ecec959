"""TileLang programs for every kernel: the portable route, without a schedule made by hand, and the one to read."""

from collections.abc import Sequence

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.tilelang.lowering import lower, lower_ahead, parameters_of
from attn_mlir.backends.nvidia.tilelang.planning import plan
from attn_mlir.backends.nvidia.tilelang.program import PrintedKernel, print_program
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

__all__ = ["emit", "emit_ahead", "plan", "program_of"]

_ACCURATE = ("-ftz=true", "-prec-div=false", "-prec-sqrt=false")
"""What `-use_fast_math` sets, without its approximations of sin, cos, tanh and pow."""


def program_of(kernel: ir.Operation) -> PrintedKernel:
    """The TileLang program of a scheduled kernel."""
    fields = attributes.read(kernel, attributes.SCHEDULE)
    return print_program(kernel, int(fields["threads"]), int(fields["stages"]), bool(fields.get("deterministic")))


def emit_ahead(kernels: Sequence[ir.Operation]) -> None:
    """Starts to lower those of the scheduled kernels that go through TileLang, side by side."""
    schedules = [attributes.read(kernel, attributes.SCHEDULE) for kernel in kernels]
    chosen = [
        (kernel, str(fields["arch"])) for kernel, fields in zip(kernels, schedules, strict=True) if fields.get("emitter") == "tilelang"
    ]
    lower_ahead([(program_of(kernel).text, arch) for kernel, arch in chosen])


def emit(kernel: ir.Operation, target: NvidiaTarget) -> KernelCode:
    """The CUDA that TileLang makes of a scheduled kernel. Raises UnsupportedError and CompileError, see `lower`."""
    made = program_of(kernel)
    lowered = lower(made.text, target.arch)
    if lowered.shared_bytes > target.shared_bytes:
        needed = f"{lowered.shared_bytes} bytes of shared memory, {target.arch} has {target.shared_bytes}"
        raise UnsupportedError(f"tilelang: @{made.name} needs {needed}; use smaller blocks (attribute tile.blocks)")
    return KernelCode(
        name=made.name,
        entry=lowered.entry,
        source=lowered.source,
        parameters=parameters_of(lowered, made),
        threads=made.threads,
        shared_bytes=lowered.shared_bytes,
        language="tilelang",
        program=made.text,
        arch=target.arch,
        flags=_ACCURATE if made.accurate else ("-use_fast_math",),
        includes=("tilelang",),
    )
