"""The HIP C++ around the statements of a kernel with matrix products."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.core import PrinterCore
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.mlir import ir

FLAGS = (
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fapprox-func",
    "-freciprocal-math",
    "-fgpu-flush-denormals-to-zero",
    "-munsafe-fp-atomics",
)
"""What clang may do to f32: roots and divisions are those of the hardware (1 to 2.5 ulp), numbers below 2^-126 count as 0."""


def kernel_code(
    kernel: ir.Operation,
    core: PrinterCore,
    aligned: Mapping[int, int],
    schedule: Fields,
    *,
    before: Sequence[str],
    start: Sequence[str],
    threads: int,
    shared: int,
    flags: tuple[str, ...] = FLAGS,
) -> KernelCode:
    """The kernel whose statements `core` has printed, with the lines `before` it and the statements that it starts with.

    `memory`, of `shared` bytes, is its shared memory. `aligned` tells of how many elements the rows of an argument start at multiples.
    """
    name = ir.StringAttr(kernel.attributes["sym_name"]).value
    text = [
        *before,
        "",
        f"{core.scalars.helper_source(cuda=False)}ATTN_KERNEL({threads}, {schedule['waves']}) {name}(",
        ",\n".join(f"    {declaration}" for declaration in core.arguments.declarations()) + ") {",
        f"  __shared__ __attribute__((aligned(16))) unsigned char memory[{shared}];",
        *(f"  {line}" for line in start),
        *core.writer.lines,
        "}",
        "",
    ]
    return KernelCode(
        name=name,
        entry=name,
        source="\n".join(text).replace("__nv_bfloat16", "__hip_bfloat16"),
        parameters=tuple(replace(p, align=aligned.get(p.argument, 0)) if p.kind == "pointer" else p for p in core.arguments.parameters()),
        threads=threads,
        shared_bytes=shared,
        language="hip",
        arch=str(schedule["arch"]),
        flags=flags,
    )
