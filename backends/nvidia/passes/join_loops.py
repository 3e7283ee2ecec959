"""Makes one loop of those over whole and over cut blocks of keys."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import wanted
from attn_mlir.backends.nvidia.forming.joining import JoinedLoop, chains_of
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all


@dataclass(frozen=True)
class JoinLoops(Pass):
    """Replaces loops of a role that follow each other, as those over blocks which a mask keeps whole or cuts, by a single one.

    A loop follows another where it begins with what that one hands on, and only numbers stand between them. The joined loop counts the
    iterations of all; each knows whose it is, and the index that it has there. Products, copies, waits and maps that are alike stand in it
    once, with numbers chosen where they differ; maps of two forms (with and without a mask) stand in an `scf.if`. So a later overlap of
    products is filled and emptied once for all loops, and code and registers of their products are those of one.

    Where no loops follow each other, or bodies differ in more, the kernel stays as it is, with the reason in `warp.refused`. So it does,
    without the option `join`, where `warp.schedule` has `join` = 0, as that of kernels over pairs: they have nothing in flight from one
    iteration to the next.
    """

    name = "warp-join-loops"
    join: bool = False

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, self._join)
        return True

    def _join(self, kernel: ir.Operation) -> None:
        if not self.join and not wanted(kernel, "join"):
            raise Refused("the schedule has no joined loops")
        _join(kernel)


def _join(kernel: ir.Operation) -> None:
    blocks = [op.regions[0].blocks[0] for op in find_all(kernel, "warp.role", "scf.for")]
    chains = [chain for block in blocks for chain in chains_of(block)]
    change_parts(chains, lambda chain: JoinedLoop(chain).join(), "no loops follow each other")
