"""Factors of steps, and mods of q and k, as the warps of scans with decays of channels compute them: a lane has two channels of a row."""

from attn_mlir.backends.gpu.structure import body, maker, operations, yielded
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.scan_patterns import reads_of
from attn_mlir.mlir import ir


def print_steps(core: Core, steps: ir.Operation, given: str, to: str, place: tuple[str, str]) -> None:
    """Two factors exp(decay), `to` x and y, of the log decays `given`; `place`: their row, and the column of the first."""
    for e, part in enumerate("xy"):
        with core.scope(""):
            bind_place(core, steps, (place[0], f"({place[1]} + {e})"), f"{given}.{part}")
            value = core.value(yielded(body(steps))[0])
            core.writer.line(f"{to}.{part} = exp2f({value} * 1.44269504f);")


def load_decays(core: Core, element: str, row: str, second: str, swizzle: str) -> None:
    """Declares `given`, the two log decays of this lane in a row of a swizzle atom at the address `row`; of f32 lanes from 16 on have an
    atom that lies `second` bytes after it. `swizzle` permutes chunks of 16 bytes.
    """
    if element == "f32":
        place = f"{row} + lane / 16 * {second} + ((lane % 16 * 8) ^ {swizzle})"
        core.writer.line(f"const float2 given = attn::load_shared2({place});")
    else:
        core.writer.line(f"const float2 given = attn::un{PACKS[element]}(attn::load_shared_int({row} + ((lane * 4) ^ {swizzle})));")


def bind_place(core: Core, op: ir.Operation, place: tuple[str, str], element: str) -> None:
    """A map's arguments stand for a place, what it reads there for `element`."""
    scalars = core.scalars
    for argument, text in zip(body(op).arguments, place, strict=True):
        scalars.bind(argument, text)
    for read in reads_of(op):
        scalars.bind(read.results[0], element)
    for inner in operations(body(op)):
        read = maker(inner.operands[0]) if inner.name == "arith.extf" else None
        if read is not None and read.name == "tensor.extract":
            scalars.bind(inner.results[0], element)
