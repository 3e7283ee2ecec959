"""Registers of a role by the fragments that live at the same time."""

from attn_mlir.dialects.regions import maker
from attn_mlir.dialects.warp.dialect import PendingType
from attn_mlir.dialects.warp.kinds import settled
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp.faults import Fault

BESIDE = 38
"""Registers for addresses, counters and what a map computes with. Beside tiles of 160, nvcc needed no more than 200."""


def check_registers(kernel: ir.Operation) -> dict[str, int]:
    """About how many registers a thread of each role needs, by its name. Raises Fault where the role has fewer."""
    found: dict[str, int] = {}
    for role in find_all(kernel, "warp.role"):
        worst: list[tuple[int, ir.Location]] = []
        _live(role.regions[0].blocks[0], set(), worst)
        most, where = max(worst, key=lambda entry: entry[0], default=(0, role.location))
        name, given = ir.StringAttr(role.attributes["sym_name"]).value, ir.IntegerAttr(role.attributes["registers"]).value
        found[name] = most + BESIDE if most else 0
        if found[name] > given:
            raise Fault("registers", where, f"role '{name}' needs about {found[name]} registers here, it has {given}")
    return found


def _live(block: ir.Block, out: set[ir.Value], worst: list[tuple[int, ir.Location]]) -> set[ir.Value]:
    """The fragments that live before a block, where `out` lives after it; notes the registers at each op."""
    live = set(out)
    for op in (view.operation for view in reversed(list(block.operations))):
        worst.append((sum(_registers(value) for value in live | set(op.results)), op.location))
        live -= set(op.results)
        used, defined = _uses(op)
        if op.name.startswith("scf.") and op.regions:
            through = live | (used - set(op.operands) if op.name in ("scf.for", "scf.while") else set())
            live = live.union(*(_live(b, through, worst) - set(b.arguments) for region in op.regions for b in region.blocks))
        live |= used - defined
    return live


def _registers(value: ir.Value) -> int:
    """Those of a value; none of a tile of one constant, which compilers make where it is used, and of columns of another tile."""
    found, part = fragment(settled(value.type)), maker(value, "warp.columns")
    return found.registers if found is not None and part is None and not _is_constant(value) else 0


def _is_constant(value: ir.Value) -> bool:
    map_ = maker(value, "warp.map")
    if map_ is None:
        return False
    last = map_.regions[0].blocks[0].operations[-1].operation
    return maker(last.operands[list(map_.results).index(value)], "arith.constant") is not None


def _uses(op: ir.Operation) -> tuple[set[ir.Value], set[ir.Value]]:
    """The fragments that an op and its regions use, and those that they define. What a product in flight multiplies lives with it."""
    used = {value for value in op.operands if fragment(settled(value.type)) is not None}
    flying = [maker(value, "warp.mma_async") for value in used if isinstance(value.type, PendingType)]
    for product in flying:  # what adds to the same registers one after the other
        before = maker(product.operands[0], "warp.mma_async") if product is not None else None
        flying += [before] if before is not None else []
    used |= {product.operands[1] for product in flying if product is not None and fragment(product.operands[1].type) is not None}
    defined: set[ir.Value] = set()
    for block in (b for region in op.regions for b in region.blocks):
        defined |= set(block.arguments)
        for inner in (view.operation for view in block.operations):
            more, made = _uses(inner)
            used, defined = used | more, defined | made | set(inner.results)
    return used - defined, defined
