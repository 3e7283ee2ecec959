"""What the schedule of a chunk scan (linear attention) depends on."""

from dataclasses import dataclass

from attn_mlir.backends.tuning.scan_facts import ScanFacts, fields_of
from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.mlir import ir
from attn_mlir.passes.linear_groups import follower_of, gradient_of


@dataclass(frozen=True)
class CpuScanFacts(ScanFacts):
    """What the schedule of a chunk scan depends on. `products`: o is multiplied with a further tensor, as gradients are."""

    products: bool = False
    one_chunk: bool = False
    """Whether chunks must be those without tuning: `crossing` products end where states are stored."""
    whole_columns: bool = False
    """Whether a program works on all columns of v, since it adds up over them, or shares its states."""


def chunk_scan_facts(op: ir.Operation) -> CpuScanFacts:
    """The facts of an `attn.chunk`."""
    one_chunk = "crossing" in op.attributes and interval_of(op) is not None
    together = gradient_of(op) is not None or follower_of(op) is not None
    return CpuScanFacts(*fields_of(op), op.opview.factor is not None, one_chunk, together)
