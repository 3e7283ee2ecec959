"""Computes part of a tile while a product flies, where compilers would compute it later."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import said
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import in_form
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_STEP = 8


@dataclass(frozen=True)
class PinMaps(Pass):
    """In loops, pins half of the columns of a tile of f32 that a map makes of one product while another one flies (`warp.pin`), such as
    exponentials of scores while dP is multiplied. ptxas moves most of them behind the wait for that product otherwise, each to its use.

    Half: with all of them pinned, warpgroups that share a multiprocessor would overlap each other less. It comes after
    `warp-delay-waits`, with `pin_maps` = 1 in `warp.schedule`. A kernel stays as it is, with the reason in `warp.refused`, where no map
    stands between two such waits, or no barrier was waited for before.
    """

    name = "warp-pin-maps"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _pin)
        return True


def _pin(kernel: ir.Operation) -> None:
    asked = said(kernel, "pin_maps", "0")
    if asked not in ("0", "1"):
        raise Refused(f"`pin_maps` in the schedule is 0 or 1, not '{asked}'")
    if asked == "0":
        raise Refused("the schedule leaves it to compilers where maps are computed (pin_maps)")
    blocks = [loop.regions[0].blocks[0] for loop in find_all(kernel, "scf.for")]
    change_parts(blocks, _change, "no loop multiplies")


def _change(block: ir.Block) -> None:
    """Pins the first map of a loop that another product's flight covers. Raises Refused, with nothing changed."""
    ops = [view.operation for view in block.operations]
    for n, op in enumerate(ops):
        if op.name != "warp.map" or len(list(op.results)) != 1 or not _is_covered(op, ops[:n], ops[n + 1 :]):
            continue
        looks = [each for each in ops[:n] if each.name == "warp.wait" and maker(each.operands[1], "warp.stage") is not None]
        if not looks:
            raise Refused("no barrier is waited for before a map that a product covers")
        tile = op.results[0]
        columns = ir.RankedTensorType(tile.type).shape[1] // (2 * _STEP) * _STEP
        with op.location, ir.InsertionPoint.after(op):
            pinned = build.op("pin", [tile, *looks[-1].operands], [tile.type], columns=columns)
        tile.replace_all_uses_except(pinned.results[0], pinned)
        return
    raise Refused("no map makes a tile of one product while another one flies")


def _is_covered(map_: ir.Operation, before: list[ir.Operation], behind: list[ir.Operation]) -> bool:
    """Whether a map of f32 reads a product that was waited for, while one flies that was begun before it and is waited for behind it."""
    tile = in_form(map_.results[0].type, "tile")
    read = {op.operands[0] for op in find_all(map_, "tensor.extract")}
    waited = [op.results[0] for op in before if op.name == "warp.mma_wait"]
    flying = [op.operands[0].owner.operation for op in behind if op.name == "warp.mma_wait"]
    return (
        tile is not None
        and tile.element == "f32"
        and tile.shape[1] >= 2 * _STEP
        and bool(read & set(waited))
        and any(op in before for op in flying)
    )
