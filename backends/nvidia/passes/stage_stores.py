"""Lets tiles leave by asynchronous copies: registers, shared memory, TMA."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import STORES, THREADS
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.backends.nvidia.forming.rings import SWIZZLE
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of, in_form
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

_ELEMENTS = {"warp.store": {"f16": 64, "bf16": 64}, "warp.atomic_add": {"f32": 32}}
"""What asynchronous copies store, and what they add: element types, and the columns of a panel."""


@dataclass(frozen=True)
class StageStores(Pass):
    """Replaces each `warp.store` of a tile of 16-bit elements, and each `warp.atomic_add` of a tile of f32: its warpgroup writes the tile
    to its rows of a buffer in shared memory, a fence shows this to asynchronous copies, and when all warps have met, one thread starts the
    copy, or the addition, to global memory, which goes on beside what follows. A role has one buffer for tiles of one type.

    Before the next tile is written, that thread waits until the copy before has read the buffer, and all meet; a role ends when its copies
    are done. Warpgroups have rows and a named barrier of their own: none waits for another. Row values stay ordinary stores.

    A kernel stays as it is, with the reason in `warp.refused`, where no such tile is stored, or shared memory has no room for it.
    """

    name = "warp-stage-stores"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, self._stage)
        return True

    def _stage(self, kernel: ir.Operation) -> None:
        found = [(role, op) for role in find_all(kernel, "warp.role") for op in find_all(role, *_ELEMENTS) if _is_tile(op)]
        if not found:
            raise Refused("no tile in whole panels is stored as 16 bits or added as f32")
        types = {(role, str(_buffer(role, op))): _buffer(role, op) for role, op in found}
        used = sum(bytes_of(op.results[0].type) for op in find_all(kernel, "warp.alloc"))
        more, limit = sum(map(bytes_of, types.values())), ir.IntegerAttr(kernel.attributes["shared_limit"]).value
        if used + more > limit:
            raise Refused(f"tiles that leave through shared memory take {more} bytes beside {used}, there are {limit}")
        buffers: dict[tuple[ir.Operation, str], ir.Value] = {}
        for (role, name), type_ in types.items():
            with role.location, ir.InsertionPoint(role), build.named("o_buffer"):
                buffers[role, name] = build.op("alloc", results=[type_]).result
        for role, op in found:
            _replace(op, role, buffers[role, str(_buffer(role, op))])
        for role in {role for role, _ in found}:
            with role.location, ir.InsertionPoint(role.regions[0].blocks[0]):
                _wait(read=False)


def _is_tile(op: ir.Operation) -> bool:
    tile = in_form(op.operands[0].type, "tile")
    return tile is not None and tile.element in _ELEMENTS[op.name] and tile.shape[1] % _ELEMENTS[op.name][tile.element] == 0


def _buffer(role: ir.Operation, op: ir.Operation) -> ir.Type:
    """The rows of all warpgroups of a role."""
    tile = ir.RankedTensorType(op.operands[0].type)
    rows = tile.shape[0] * ir.IntegerAttr(role.attributes["warpgroups"]).value
    with op.location:
        return build.shared_type([1, rows, tile.shape[1]], tile.element_type, SWIZZLE)


def _replace(op: ir.Operation, role: ir.Operation, buffer: ir.Value) -> None:
    fragment, target, batch, head, row, *more = op.operands
    warpgroup, type_ = role.regions[0].blocks[0].arguments[0], ir.RankedTensorType(fragment.type)
    with op.location, ir.InsertionPoint(op):
        tile = build.shared_type(type_.shape, type_.element_type, SWIZZLE)
        zero = build.index(0)
        first = arith.MulIOp(warpgroup, build.index(type_.shape[0])).result
        own = arith.AddIOp(warpgroup, build.index(STORES)).result
        view = build.op("view", [buffer, zero, first, zero], [tile]).result
        _wait(read=True)
        build.op("named_sync", [own], threads=THREADS)
        build.op("write", [fragment, view])
        # TMA stores what all warps have written.
        build.op("fence_async")
        build.op("named_sync", [own], threads=THREADS)
        with ir.InsertionPoint(build.elect()):
            build.op("add_async" if op.name == "warp.atomic_add" else "store_async", [view, target, batch, head, row, *(more or [zero])])
            build.op("store_commit")
    op.erase()


def _wait(read: bool) -> None:
    """The thread that starts copies waits until they have read shared memory, or are done."""
    with ir.InsertionPoint(build.elect()):
        build.op("store_wait", pending=0, read=read)
