"""Recognises kernels of grid "chunks" that multiply 16-bit tiles: what a scan loads, computes and stores."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, constant, maker, operations, yielded
from attn_mlir.backends.nvidia.hopper.scan_common import (
    CHUNK,
    VALUES,
    ScanFrame,
    check_columns,
    final_of,
    initial_of,
    is_packed,
    loop_of,
    need_all,
    states_of,
)
from attn_mlir.backends.nvidia.hopper.scan_patterns import (
    InputTile,
    input_of,
    known,
    made,
    need,
    reads_of,
    scaled,
    sources,
)
from attn_mlir.backends.nvidia.hopper.scan_rows import OutputRows, read_rows, residuals, scales_rows
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import ir

KEYS = (64, 128, 256)
"""Columns of q and k."""


@dataclass(kw_only=True)
class ChunkScan(ScanFrame):
    """One kernel with the same decays for all channels; `steps`, `left`, `right`, `input_decay` and `chunk_decay` are maps of rank 1.

    `steps`: the log decays, whose sums are `prefix` and, of the whole chunk, `total` (None: no decays); `input_decay` scales rows of v
    on their way into the state, `chunk_decay` the state. `left` are factors of rows of q, `right` those of k and v, which pairs read, too
    (None: there are none). `rows`: what it gives for positions, None where only the state is of use. `compensated`: products with
    the state take its residual, and those of rows of v on their way into it, too.
    """

    rows: OutputRows | None
    steps: ir.Operation | None
    prefix: ir.Value | None
    total: ir.Value | None
    left: ir.Operation | None
    right: ir.Operation | None
    input_decay: ir.Operation
    chunk_decay: ir.Operation
    compensated: bool

    @property
    def scaled(self) -> bool:
        """Whether residuals are multiplied apart, scaled by 2^11."""
        return self.compensated and self.element == "f16"

    @property
    def inputs(self) -> dict[str, InputTile]:
        """The tiles of a stage by name."""
        before = {"q": self.rows.q} if self.rows else {}
        after = {"factor": self.rows.factor} if self.rows and self.rows.factor else {}
        return {**before, "k": self.k, "v": self.v, **after}


def read_scan(kernel: ir.Operation) -> ChunkScan | None:
    """The scan that a kernel is; None for a kernel of another form."""
    return known(scan_of, kernel)


def scan_of(kernel: ir.Operation) -> ChunkScan:
    """The scan that a kernel is. Raises OtherKernelError for a kernel of another form."""
    loop = loop_of(kernel)
    inner, (_, state) = operations(body(loop)), body(loop).arguments
    last = made(yielded(body(loop))[0], "tile.dot_rescale", "tile.dot_add")
    following = last if last.name == "tile.dot_rescale" else made(last.operands[0], "tile.dot_rescale")
    need(following.operands[0] == state and flag(following, "transpose_a") and not flag(following, "transpose_b"))
    rows = read_rows(inner, state, last.results[0])
    transposed = rows.transposed if rows else not scales_rows(following.operands[3])
    entering, keys = list(following.operands)[2:][:: 1 if transposed else -1]
    values, input_decay = scaled(made(entering, "tile.map"))
    need(rows is None or (rows.keys == keys and rows.values == values))
    left_out = residuals(*([rows.from_state] if rows else []), (following, last, 0 if transposed else 1))
    chunk_decay = made(following.operands[1], "tile.map")
    left, right = _row_factors(rows, input_decay)
    of_rows = [op.results[0] for op in (left, right, rows.skip if rows else None) if op is not None]
    prefix, steps, total = _decays([*([rows.output_decay, *rows.pairs] if rows else []), input_decay, chunk_decay], of_rows, loop)
    states, branch = states_of(inner, state, last.results[0])
    scan = ChunkScan(
        kernel=kernel, loop=loop, state=state, following=last.results[0], initial=initial_of(loop), k=input_of(keys),
        v=input_of(values), rows=rows, steps=steps, prefix=prefix, total=total, left=left, right=right,
        input_decay=input_decay, chunk_decay=chunk_decay, compensated=bool(left_out),
        packed=is_packed(kernel), transposed=transposed, states=states, branch=branch,
        final=final_of(operations(body(kernel)), loop),
    )  # fmt: skip
    used = [*left_out, last, following, maker(entering), input_decay, chunk_decay, steps, left, right]
    used.append(branch if branch is not None else states)
    used += [maker(value) for value in (keys, values, *([] if prefix is None else [prefix]))]
    used += [*(rows.ops if rows else []), *(each.load for each in scan.inputs.values())]
    _check(scan, inner, [op for op in used if op is not None])
    return scan


def _check(scan: ChunkScan, inner: list[ir.Operation], used: list[ir.Operation]) -> None:
    """Sizes and types are those of the generated code, and no op of the loop is left over."""
    check_columns(scan.keys, scan.values, KEYS, VALUES, scan.k.load)
    need(scan.k.load.results[0].type.shape[0] == CHUNK)  # pyright: ignore
    rows = scan.rows
    scan.check_memory(scan.inputs.values(), rows.store if rows else None, [rows.products, rows.diagonal_sums] if rows else [])
    need(rows is None or rows.factor is None or rows.factor.mod is None)
    need(not any(each.factors for each in scan.inputs.values()))
    need_all(inner, used)


def _row_factors(rows: OutputRows | None, input_decay: ir.Operation) -> tuple[ir.Operation | None, ir.Operation | None]:
    """The maps that make factors of rows of q, which `output_decay` reads, and of k and v, which `input_decay` reads; pairs read both."""
    found: list[ir.Operation | None] = []
    for op in (None if rows is None else rows.output_decay, input_decay):
        read = [] if op is None else [maker(value) for value in sources(op, 1)]
        maps = [each for each in read if each is not None and each.name == "tile.map"]
        need(len(maps) <= 1)
        found.append(maps[0] if maps else None)
    left, right = found
    of_rows = [op for op in (left, None if rows is None else rows.skip) if op is not None]
    of_columns = [] if right is None else [right]
    for op in [] if rows is None else rows.pairs:
        for read in reads_of(op):
            at = [read.operands[1] == argument for argument in body(op).arguments]
            of = maker(read.operands[0])
            need(of is None or of.name != "tile.map" or (at[0] and of in of_rows) or (at[1] and of in of_columns))
    return left, right


def _decays(
    maps: list[ir.Operation], others: list[ir.Value], loop: ir.Operation
) -> tuple[ir.Value | None, ir.Operation | None, ir.Value | None]:
    """The sums of log decays that maps read besides `others`; the map that makes the decays; the last sum, as it is read in the loop."""
    found = [value for value in dict.fromkeys(value for op in maps for value in sources(op, 1)) if value not in others]
    need(len(found) <= 1)
    if not found:
        return None, None, None
    sums = made(found[0], "tile.cumsum")
    need(not flag(sums, "reverse"))
    reads = [op for op in operations(body(loop)) if op.name == "tensor.extract" and op.operands[0] == found[0]]
    need(len(reads) <= 1 and all(constant(op.operands[1]) == CHUNK - 1 for op in reads))
    return found[0], made(sums.operands[0], "tile.map"), reads[0].results[0] if reads else None
