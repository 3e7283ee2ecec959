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

_COLUMNS = 64
"""Of 16-bit elements in a panel."""


@dataclass(frozen=True)
class StageStores(Pass):
    """Replaces each `warp.store` of a tile of 16-bit elements: its warpgroup writes the tile to its rows of a buffer in shared memory, a
    fence shows this to asynchronous copies, and when all warps have met, one thread starts the copy to global memory, which goes on
    beside what follows.

    Before the next tile is written, that thread waits until the copy before has read the buffer, and all meet; a role ends when its copies
    are done. Warpgroups have rows and a named barrier of their own: none waits for another. Row values stay ordinary stores.

    A kernel stays as it is, with the reason in `warp.refused`, where no such tile is stored, or shared memory has no room for it.
    """

    name = "warp-stage-stores"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, self._stage)
        return True

    def _stage(self, kernel: ir.Operation) -> None:
        found = [(role, op) for role in find_all(kernel, "warp.role") for op in find_all(role, "warp.store") if _is_tile(op)]
        if not found:
            raise Refused("no tile of 16-bit elements in whole panels is stored")
        types = {role: _buffer(role, op) for role, op in found}
        if any(types[role] != _buffer(role, op) for role, op in found):
            raise Refused("a role stores tiles of several shapes")
        used = sum(bytes_of(op.results[0].type) for op in find_all(kernel, "warp.alloc"))
        more, limit = sum(map(bytes_of, types.values())), ir.IntegerAttr(kernel.attributes["shared_limit"]).value
        if used + more > limit:
            raise Refused(f"tiles that leave through shared memory take {more} bytes beside {used}, there are {limit}")
        for role, type_ in types.items():
            with role.location, ir.InsertionPoint(role), build.named("o_buffer"):
                buffer = build.op("alloc", results=[type_]).result
            for op in [op for owner, op in found if owner == role]:
                _replace(op, role, buffer)
            with role.location, ir.InsertionPoint(role.regions[0].blocks[0]):
                _wait(read=False)


def _is_tile(op: ir.Operation) -> bool:
    tile = in_form(op.operands[0].type, "tile")
    return tile is not None and tile.element in ("f16", "bf16") and tile.shape[1] % _COLUMNS == 0


def _buffer(role: ir.Operation, op: ir.Operation) -> ir.Type:
    """The rows of all warpgroups of a role."""
    tile = ir.RankedTensorType(op.operands[0].type)
    rows = tile.shape[0] * ir.IntegerAttr(role.attributes["warpgroups"]).value
    with op.location:
        return build.shared_type([1, rows, tile.shape[1]], tile.element_type, SWIZZLE)


def _replace(op: ir.Operation, role: ir.Operation, buffer: ir.Value) -> None:
    fragment, target, batch, head, row = op.operands
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
        build.op("fence_async")
        build.op("named_sync", [own], threads=THREADS)
        with ir.InsertionPoint(build.elect()):
            build.op("store_async", [view, target, batch, head, row, zero])
            build.op("store_commit")
    op.erase()


def _wait(read: bool) -> None:
    """The thread that starts copies waits until they have read shared memory, or are done."""
    with ir.InsertionPoint(build.elect()):
        build.op("store_wait", pending=0, read=read)
