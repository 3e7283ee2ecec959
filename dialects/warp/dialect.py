"""The `warp` dialect itself, its types and attributes; every op of it lives in a module beside this one."""

from typing import Any

from attn_mlir.mlir import ext, ir


class Warp(ext.Dialect, name="warp"):
    """Who does it, where and when: a scheduled kernel, which a printer only has to spell.

    A kernel has roles, which run at the same time and meet at barriers. Shared memory is memrefs in the memory space `#warp.shared`,
    registers of a warpgroup are fragments: tensors whose encoding is a `#warp.layout`. Loops and conditions are `scf`, numbers `arith`,
    elements `tensor.extract`; so what those dialects and their passes can do works here, too.
    """


class LayoutAttr(Warp.Attribute, name="layout"):
    """Encoding of a fragment: the matrix instruction whose accumulator it is, and its form (`layouts.Fragment`).

    Instructions: "wgmma" (m64nNk16 of a warpgroup), "mma16" and "mma32" (m16n8k16 of each of its warps, which has 16 rows or twice 16),
    "mfma32" (32x32x8 of each of four waves). Forms: "tile", [M, N]; "rows", [M], one value a row, the same in all threads of the row;
    "parts", [M, threads of a row], what each of these has.
    """

    instruction: ir.StringAttr
    form: ir.StringAttr


class SharedAttr(Warp.Attribute, name="shared"):
    """Memory space of shared memory: the bytes over which 16-byte chunks are swizzled, 0 for none."""

    swizzle: ir.IntegerAttr


class BarrierType(Warp.Type, name="barrier"):
    """Mbarriers, one for each of `stages`. A phase ends when all `arrivals` and all bytes announced have come."""

    stages: ir.IntegerAttr
    arrivals: ir.IntegerAttr


class PendingType(Warp.Type, name="pending"):
    """A fragment that something asynchronous still writes: only the next product and the wait take it."""

    fragment: Any
