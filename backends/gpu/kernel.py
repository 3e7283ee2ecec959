"""What a code generator hands to the driver: the source of one kernel and how to launch it.

The arguments of a kernel are those of its tile function, in its order: tensors and numbers, then the outputs, then (for "pairs") the
keys of a chunk. A `KernelParameter` says how one parameter of the C++ function is made from them.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from attn_mlir.backends import plain

FEW = "few"
"""A grid of `KernelCode`: the last argument tells, as `grid` and `parts`, of which a cluster has so many."""
RAGGED_ROWS = 1 << 30
"""Rows of the description of a ragged view for a copy engine, which must not begin in front of the tensor."""


@dataclass(frozen=True)
class KernelParameter:
    """One parameter of a kernel in C++.

    `kind`: "pointer", the address of tensor `argument`, which has any strides unless `align` is set: then its last stride is 1, and the
    others and its address are multiples of `align` elements; "size" and "stride" (in elements), of its dimension `dim`, counted from behind
    the last one where it is negative; "scalar", a number;
    "descriptor", a `CUtensorMap` of a 4-D tensor [B, H, S, D] by value (64 bytes aligned, `__grid_constant__`), whose boxes have `box`
    columns and rows, with swizzling over `swizzle` bytes and zeros out of bounds; "ragged", one of a ragged view [E, H, T, D], as
    [W, E, H, RAGGED_ROWS, D]: row RAGGED_ROWS - T + i at w = RAGGED_ROWS is row i of the view, and the description begins where the tensor
    does; "packed", one of a tensor [B, H, S, D] as [B, S, H, D], whose boxes have `box` columns, and rows that are those of `dim`
    neighbouring heads at each position; "window", one of the last four dimensions of a tensor, or of fewer with ones in front, whose boxes
    have columns of the last dimension and rows of dimension `dim`, counted from behind it, in the order columns, rows, then the others from
    the last one on, or zeros where the copy engine cannot read the tensor; "counter", the address of an int32 that is zero at the start,
    and that the kernel leaves zero, or of as many as `box` has columns; "blocks", how many blocks of rows the grid has;
    "bytes", a structure, whose bytes the argument is.
    `type` is the C type of what is passed by value: "int", "long long", "float" or "double".
    """

    kind: str
    argument: int = -1
    dim: int = -1
    type: str = "int"
    box: tuple[int, int] = (0, 0)
    swizzle: int = 128
    align: int = 0


@dataclass(frozen=True)
class KernelCode:
    """The generated source of one kernel.

    `grid`: "tiles", one thread block per block of rows (x), head (y) and batch (z) of the argument that `tile.kernel` names;
    "persistent", `occupancy` for each of the GPU's multiprocessors, or tiles if there are fewer; FEW. `cluster`: so many blocks run a
    tile together.
    `language`: "cuda", "hip" or "tilelang" (then `source` is the CUDA that TileLang made, and `program` the TileLang program).
    """

    name: str
    entry: str
    source: str
    parameters: tuple[KernelParameter, ...]
    threads: int
    shared_bytes: int
    grid: str = "tiles"
    cluster: int = 1
    language: str = "cuda"
    program: str = ""
    arch: str = "sm_90a"
    flags: tuple[str, ...] = ("-use_fast_math",)
    includes: tuple[str, ...] = field(default=())
    """Names of packages' include folders that the source needs: "tilelang" or none."""
    occupancy: int = 1
    """Thread blocks of a persistent kernel on a multiprocessor."""
    overlaps: bool = False
    """Whether it lets the kernel after it start, and waits at its end for the one before it."""
    early: bool = False
    """Whether it starts while the kernel before it runs."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, without the sources."""
        return {name: value for name, value in asdict(self).items() if name not in ("source", "program")}

    @staticmethod
    def from_json(fields: dict[str, Any], source: str = "", program: str = "") -> "KernelCode":
        """The inverse of `to_json`. Raises LookupError or TypeError for other data."""
        return plain.read(KernelCode, {**fields, "source": source, "program": program})
