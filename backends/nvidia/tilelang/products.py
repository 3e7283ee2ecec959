"""Loads, matrix products and sums in global memory."""

from collections.abc import Sequence

from attn_mlir.backends.gpu.residuals import RESIDUAL_SCALE
from attn_mlir.backends.nvidia.tilelang.context import Context
from attn_mlir.backends.nvidia.tilelang.expressions import number, strip
from attn_mlir.backends.nvidia.tilelang.memory import VECTOR, alignment, memory_type
from attn_mlir.backends.nvidia.tilelang.tiles import InMemory, TileBuffer, bound, exact, padded
from attn_mlir.dialects.numbers import flag
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_DYNAMIC = ir.ShapedType.get_dynamic_size()


def load_size(op: ir.Operation) -> tuple[int, int]:
    """The most rows that a loaded tile has, and its columns."""
    rows, columns = ir.RankedTensorType(op.results[0].type).shape
    limit = bound(op.operands[4]) if rows == _DYNAMIC else rows
    if limit is None:
        raise UnsupportedError("tilelang: a tile has no known number of rows")
    return limit, columns


def loads_whole(op: ir.Operation) -> bool:
    """Whether all rows of a loaded tile exist, always."""
    return exact(op.operands[4]) and bound(op.operands[4]) == padded(load_size(op)[0])


def can_be_async(op: ir.Operation) -> bool:
    """Whether `cp.async` can copy a tile 16 bytes at a time."""
    type_ = ir.MemRefType(op.operands[0].type)
    return alignment(type_) * type_.element_type.width == 8 * VECTOR


def source_region(context: Context, op: ir.Operation, row: str) -> str:
    """What a whole tile is a copy of."""
    source, b, h = list(op.operands)[:3]
    rows, columns = context.shape(load_size(op))
    return context.memory.element(source, [context.text(b), context.text(h), f"{row} : {row} + {rows}", f"0:{columns}"])


def new_tile(context: Context, op: ir.Operation, stages: int = 1) -> TileBuffer:
    """Shared memory for a loaded tile, `stages` times."""
    shape = context.shape(load_size(op))
    name = f"{context.memory.name(op.operands[0])}_tile"
    dtype = memory_type(ir.RankedTensorType(op.results[0].type).element_type)
    return context.tiles.new(name, "shared", shape if stages == 1 else (stages, *shape), dtype)


def print_load(context: Context, op: ir.Operation) -> None:
    """`tile.load` into shared memory; rows and columns that do not exist are 0."""
    source, b, h, row, count = op.operands
    for other in context.loaded():
        if [*other.operands] == [*op.operands]:
            context.where[op.results[0]] = context.where[other.results[0]]
            return
    context.loaded().append(op)
    if _is_read_once(context, op):
        place = [context.text(b), context.text(h), f"{context.text(row)} + T.min({{0}}, {strip(context.text(count))} - 1)", "{1}"]
        rows, columns = context.shape(load_size(op))
        dtype = memory_type(ir.RankedTensorType(op.results[0].type).element_type)
        element = context.memory.element(source, place)
        context.where[op.results[0]] = InMemory(context.memory.name(source), "memory", (rows, columns), dtype, element=element)
        return
    tile = context.where[op.results[0]] = new_tile(context, op)
    first = context.text(row)
    if loads_whole(op):
        context.line(f"T.copy({source_region(context, op, first)}, {tile.whole()})")
        return
    columns, (rows, width) = load_size(op)[1], context.shape(load_size(op))
    guards = [f"i < {context.text(count)}", *([f"j < {columns}"] if columns != width else [])]
    element = context.memory.element(source, [context.text(b), context.text(h), f"{first} + i", "j"])
    zero = number(0.0, ir.RankedTensorType(op.results[0].type).element_type)
    context.line(f"for i, j in T.Parallel({rows}, {width}):")
    context.line(f"{tile.at('i', 'j')} = T.if_then_else({' and '.join(guards)}, {element}, {zero})", 1)


def _is_read_once(context: Context, op: ir.Operation) -> bool:
    """Whether maps read a tile element by element, each at its own place, and nothing is multiplied: it need not be in shared memory."""
    rows, columns = load_size(op)
    uses = [use.owner.operation for use in op.results[0].uses]
    straight = all(use.name == "tensor.extract" and list(use.operands)[1:] == list(use.block.arguments) for use in uses)
    return not context.multiplies and straight and context.shape((rows, columns)) == (rows, columns)


def _policy(context: Context, shape: Sequence[int]) -> str:
    """How warps share a product: each has rows of its own where there are enough, so that rows of all tiles lie alike, else columns.

    Eight warps or more with 16 columns each would hold rows in a way that `T.reduce_sum` refuses ("ReduceOp cannot lower a layout ...").
    """
    rows, columns = shape
    warps = context.threads // 32
    kind = "FullRow" if context.rows_apart(rows) else "Square" if warps >= 8 and columns == 16 * warps else "FullCol"
    return f"policy=T.GemmWarpPolicy.{kind}"


def turns(op: ir.Operation) -> bool:
    """Whether a product transposes its first factor."""
    return flag(op, "transpose_a")


def _turned(op: ir.Operation) -> str:
    """Which factors of a product are transposed."""
    return "".join(f"transpose_{name[-1].upper()}=True, " for name in ("transpose_a", "transpose_b") if flag(op, name))


def print_dot(context: Context, op: ir.Operation) -> None:
    """`tile.dot` into a fragment."""
    a, b = (context.shared(operand) for operand in op.operands)
    # The result may have any number of rows and columns, the tiles that are multiplied are padded.
    transposed = ir.BoolAttr(op.attributes["transpose_b"]).value
    shape = (a.shape[1 if turns(op) else 0], b.shape[0 if transposed else 1])
    tile = context.homes.get(op.results[0]) or context.tiles.new("products", "fragment", shape, "float32")
    context.where[op.results[0]] = tile
    turned = _turned(op)
    context.line(f"T.gemm({a.whole()}, {b.whole()}, {tile.name}, {turned}{_policy(context, shape)}, clear_accum=True)")
    context.scatter(op.results[0])


def print_dot_accumulate(context: Context, op: ir.Operation) -> None:
    """`tile.dot_add` and `tile.dot_rescale`, in place where nothing else needs the old sums."""
    c, *scale, a, b = op.operands
    total = context.where[op.results[0]] = _accumulator(context, op, c)
    scaled = any(value in context.residuals for value in (a, b))
    if scale:
        _multiply(context, total, context.tile(scale[0]).at("i"))
    if scaled:
        _multiply(context, total, str(RESIDUAL_SCALE))
    turned = _turned(op)
    left = (context.shared(a) if turns(op) or context.pieces or not context.rows_apart(total.shape[0]) else context.tile(a)).whole()
    right = context.shared(b).whole()
    context.line(f"T.gemm({left}, {right}, {total.name}, {turned}{_policy(context, total.shape)})")
    if scaled:
        _multiply(context, total, str(1.0 / RESIDUAL_SCALE))
    context.scatter(op.results[0])


def _multiply(context: Context, total: TileBuffer, factor: str) -> None:
    rows, columns = total.shape
    context.line(f"for i, j in T.Parallel({rows}, {columns}):")
    context.line(f"{total.at('i', 'j')} = {total.at('i', 'j')} * {factor}", 1)


def _accumulator(context: Context, op: ir.Operation, c: ir.Value) -> TileBuffer:
    old = context.tile(c)
    wanted = context.homes.get(op.results[0])
    if wanted == old or (wanted is None and len(list(c.uses)) == 1):
        return old
    new = wanted or context.tiles.new(old.name, "fragment", old.shape, old.dtype)
    context.line(f"T.copy({old.name}, {new.name})")
    return new


def print_range(context: Context, op: ir.Operation) -> None:
    """`attn.range`: the lanes of each warp look at the elements of a box, and tell each other the least and the largest."""
    source, *box = op.operands
    rank = len(box) // 2
    begins, ends = ([strip(context.text(value)) for value in part] for part in (box[:rank], box[rank:]))
    dtype = context.scalars.dtype(op.results[0].type, op.results[0])
    low, high = (context.names.new(name) for name in ("least", "largest"))
    limit = 2**63 - 1 if dtype == "int64" else 2**31 - 1
    context.line(f'{low} = T.alloc_var("{dtype}", init=T.{dtype}({limit}))')
    context.line(f'{high} = T.alloc_var("{dtype}", init=T.{dtype}({-limit - 1}))')
    indices = [context.names.new(f"at{dim}") for dim in range(rank)]
    for dim, index in enumerate(indices):
        last = dim == rank - 1
        bounds = f"{begins[dim]} + T.get_lane_idx(), {ends[dim]}, 32" if last else f"{begins[dim]}, {ends[dim]}"
        context.line(f"for {index} in T.serial({bounds}):", dim)
    element = f"{context.memory.name(source)}[{', '.join(indices) or '0'}]"
    stored = memory_type(ir.MemRefType(source.type).element_type)
    number_read = element if dtype == stored else f'T.cast({element}, "{dtype}")'
    context.line(f"{low} = T.min({low}, {number_read})", rank)
    context.line(f"{high} = T.max({high}, {number_read})", rank)
    for name, kind, result in ((low, "min", op.results[0]), (high, "max", op.results[1])):
        if rank:
            context.line(f"{name} = T.warp_reduce_{kind}({name})")
        context.scalars.bind(result, name)


def print_fill(context: Context, op: ir.Operation) -> None:
    """`tile.fill` of a fragment."""
    type_ = ir.RankedTensorType(op.results[0].type)
    shape = context.shape(type_.shape)
    name = "sums" if type_.rank == 2 else "row_sums"
    tile = context.homes.get(op.results[0]) or context.tiles.new(name, "fragment", shape, memory_type(type_.element_type))
    context.where[op.results[0]] = tile
    context.line(f"T.fill({tile.name}, {strip(context.text(op.operands[0]))})")


def print_accumulate(context: Context, op: ir.Operation) -> None:
    """`tile.accumulate`: a product with the transposed tile, added to memory by atomic operations."""
    a, b, target, slot, batch, head, row, count = op.operands
    left, right = context.shared(a), context.shared(b)
    rows, columns = left.shape[1], right.shape[1]
    product = context.tiles.new(f"{context.memory.name(target)}_products", "fragment", (rows, columns), "float32")
    policy = _policy(context, (rows, columns))
    context.line(f"T.gemm({left.whole()}, {right.whole()}, {product.name}, transpose_A=True, {policy}, clear_accum=True)")
    width = ir.MemRefType(target.type).shape[4]
    whole = exact(count) and bound(count) == rows
    guards = [*([] if whole else [f"i < {context.text(count)}"]), *([] if width == columns else [f"j < {width}"])]
    place = ", ".join([*(context.text(v) for v in (slot, batch, head)), f"{context.text(row)} + i", "j"])
    context.line(f"for i, j in T.Parallel({rows}, {columns}):")
    if guards:
        context.line(f"if {' and '.join(guards)}:", 1)
    context.line(f"T.atomic_add({context.memory.name(target)}[{place}], {product.at('i', 'j')})", 2 if guards else 1)
