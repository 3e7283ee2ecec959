"""What the plain code generator can do, and how it shares out rows."""

from collections.abc import Mapping

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.simt.merge import plan_merge
from attn_mlir.backends.gpu.simt.scan import plan_scan
from attn_mlir.backends.gpu.simt.steps import plan_steps
from attn_mlir.backends.gpu.simt.sums import plan_sums
from attn_mlir.backends.gpu.simt.total import plan_total
from attn_mlir.backends.gpu.simt.values import reads_along
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_SCALARS = ("arith.", "math.")
_KNOWN = ("tile.program_id", "tile.load", "tile.map", "tile.yield", "tile.store", "tile.fill", "tile.scatter_add", "tile.scatter_yield",
          "tensor.extract", "memref.load", "memref.dim", "func.return")  # fmt: skip
_VECTOR_BYTES = 16


def plan(kernel: ir.Operation, choices: Mapping[str, int | str], wave: int = 32) -> Fields | None:
    """The schedule of a kernel over rows or elements without products; None for others.

    `threads` of a block, a multiple of `wave`, `lanes` that share a row, `vector`, the elements that a lane reads at once;
    `deterministic`: sums in memory have a fixed order. See `scan` and `total` for kernels with a loop, `sums` for kernels that sum up rows.
    """
    if find_all(kernel, "tile.cumsum"):
        return plan_sums(kernel, wave) or plan_steps(kernel, wave) or plan_scan(kernel, choices, wave)
    if find_all(kernel, "scf.for"):
        if (merge := plan_merge(kernel, wave)) is not None:
            return merge
        return plan_scan(kernel, choices, wave) or plan_total(kernel, wave)
    if not all(op.name.startswith(_SCALARS) or op.name in _KNOWN for op in walk(kernel)) or not reads_own_elements(kernel):
        return None
    width = columns(kernel)
    vector = _vector(width, _smallest_element(kernel)) if find_all(kernel, "tile.load") or _reads_rows(kernel) else 1
    lanes = 1 if width == 0 else 32 if width < 0 else _lanes(width // vector)
    rows = ir.IntegerAttr(ir.DictAttr(kernel.attributes["tile.kernel"])["block_q"]).value
    threads = max(wave, min(256, -(-rows * lanes // wave) * wave))
    fields: Fields = {"threads": threads, "lanes": lanes, "vector": vector, "deterministic": 0}
    fields |= {name: value for name, value in choices.items() if name in fields}
    threads, lanes, vector = (int(fields[name]) for name in ("threads", "lanes", "vector"))
    valid = threads in range(wave, 1025, wave) and lanes in (1, 2, 4, 8, 16, 32) and vector in (1, 2, 4, 8)
    return fields if valid and (width % vector == 0 if width > 0 else vector == 1) else None


def _reads_rows(kernel: ir.Operation) -> bool:
    """Whether maps read memory along their columns."""
    return any(len(op.block.arguments) == 2 and reads_along(op) for op in find_all(kernel, "memref.load"))


def columns(kernel: ir.Operation) -> int:
    """How many columns maps and stores have: 0 for none, -1 where the number is known at run time only, or is not one."""
    found: set[int] = set()
    for op in find_all(kernel, "tile.map", "tile.scatter_add"):
        extents = list(op.operands)[1 if op.name == "tile.scatter_add" else 0 :]
        if len(extents) == 2:
            maker = None if isinstance(extents[1].owner, ir.Block) else extents[1].owner.operation
            constant = maker is not None and maker.name == "arith.constant"
            found.add(ir.IntegerAttr(maker.attributes["value"]).value if maker is not None and constant else -1)
    return found.pop() if len(found) == 1 else -1 if found else 0


def reads_own_elements(kernel: ir.Operation) -> bool:
    """Whether each map reads tiles at its own indices only, and tiles come from memory or from other maps."""
    for op in find_all(kernel, "tensor.extract"):
        tile, *indices = op.operands
        if isinstance(tile.owner, ir.Block) or tile.owner.operation.name not in ("tile.load", "tile.map", "tile.fill"):
            return False
        block = op.block
        if indices != list(block.arguments)[: len(indices)]:
            return False
    return True


def _smallest_element(kernel: ir.Operation) -> int:
    """Bytes of the smallest element in tiles of two dimensions."""
    types = [op.results[0].type for op in find_all(kernel, "tile.load")] + [op.operands[0].type for op in find_all(kernel, "tile.store")]
    widths = [ir.RankedTensorType(t).element_type.width for t in types if ir.RankedTensorType(t).rank == 2]
    return max(1, min(widths, default=32) // 8)


def _vector(width: int, size: int) -> int:
    vector = min(8, _VECTOR_BYTES // size) if width > 0 else 1
    while width > 0 and width % vector:
        vector //= 2
    return vector


def _lanes(chunks: int) -> int:
    """A power of two that leaves few lanes idle, as large as possible."""
    return min((1, 2, 4, 8, 16), key=lambda lanes: (-(-chunks // lanes) * lanes if lanes >= min(4, chunks) else 1 << 20, -lanes))
