"""Writes an `attn.attention` from a program: scores in one piece, what runs along the row in another."""

from collections.abc import Mapping, Sequence

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.derivation.expr import BOOL, FLOAT, Expr, leaves
from attn_mlir.passes.differentiation.host import PAIR_NAMES, HostBuilder, HostExpressions
from attn_mlir.passes.differentiation.model import RowModel, largest


def write_kv_pass(host: HostBuilder, program: RowModel, apart: Sequence[int], rows: Mapping[Expr, ir.Value]) -> dict[Expr, ir.Value]:
    """The sums over keys `apart`, of weights that only need row values in `rows`, as tensors [B, Hq, Sq]."""
    names = [program.reductions[i].name for i in apart]
    values = write_attention(host, program, [], [(name, program.red(i)) for name, i in zip(names, apart, strict=True)], rows, list(apart))
    return {program.red(i): value for i, value in zip(apart, values, strict=True)}


def write_attention(
    host: HostBuilder,
    program: RowModel,
    terms: Sequence[tuple[Expr, str, int]],
    row_values: Sequence[tuple[str, Expr]],
    rows: Mapping[Expr, ir.Value],
    computed: Sequence[int],
) -> list[ir.Value]:
    """An attention with `terms` (weight, tensor, output) and named row values; returns the outputs, then the row values.

    `computed` are the reductions that it computes; `rows` holds the values of others.
    """
    roots = [w for w, _, _ in terms] + [value for _, value in row_values] + [program.reductions[i].value for i in computed]
    scores = _scores(program, roots, rows)
    used = sorted({int(n.attr) for n in program.below(scores) if n.op == "x"}) or [0]  # type: ignore[call-overload]
    first = program.products[used[0]]
    q, k = host.tensors[first[0]], host.tensors[first[1]]
    v = host.tensors[terms[0][1]] if terms else k
    shape = ir.RankedTensorType(v.type)
    o_type = ir.RankedTensorType.get(shape.shape, shape.element_type)
    types = [o_type] + [host.row_type()] * len(row_values)
    op, block = build.attention(q, k, v, types, [name for name, _ in row_values])
    with ir.InsertionPoint(block):
        for number in used[1:]:
            query, key = program.products[number]
            build.product(host.tensors[query], host.tensors[key])
        for _, tensor, output in terms[1:]:
            build.term(host.tensors[tensor], output)
        host.clone_present()
        _score_piece(host, program, scores, used)
        _row_piece(host, program, scores, terms, row_values, rows, computed)
    results = list(op.results)
    outputs = [results[0]] if terms else []
    for number in sorted({output for _, _, output in terms} - {0}):
        tensor = next(host.tensors[t] for _, t, output in terms if output == number)
        outputs.append(build.output(results[0], number, tensor.type))
    return [*outputs, *results[1:]]


def _scores(program: RowModel, roots: Sequence[Expr], rows: Mapping[Expr, ir.Value]) -> list[Expr]:
    """The largest expressions of a pair that need no value of the row: what `attn.score` yields; conditions on the key among them.

    A row piece knows no key index, so that conditions such as `kv_idx < 3` come with the scores, as 1 or 0.
    """
    found = largest(
        roots,
        lambda n: n in rows or not program.is_pair(n) or n.op == "one",
        lambda n: (n.type == FLOAT or n.op == "param") and not any(leaf.op in ("red", "row") for leaf in leaves(n)),
    )
    return found or [program.graph.leaf("s", 0)]


def _score_piece(host: HostBuilder, program: RowModel, scores: Sequence[Expr], used: Sequence[int]) -> None:
    def body(*arguments: ir.Value) -> list[ir.Value]:
        known = {program.graph.leaf("x", k): value for k, value in zip(used, arguments, strict=False)}
        expressions = HostExpressions(host, program, arguments[len(used) :], known)
        g = program.graph
        given = [g.node("arith.select", n, g.const(1.0), g.const(0.0)) if n.type == BOOL else n for n in scores]
        return [expressions.emit(n) for n in given]

    products = [(f"x_{i}" if i else "x", host.score) for i in range(len(used))]
    build.piece("score", [*products, *[(name, ir.IndexType.get()) for name in PAIR_NAMES]], body)


def _row_piece(
    host: HostBuilder,
    program: RowModel,
    scores: Sequence[Expr],
    terms: Sequence[tuple[Expr, str, int]],
    row_values: Sequence[tuple[str, Expr]],
    rows: Mapping[Expr, ir.Value],
    computed: Sequence[int],
) -> None:
    def body(*arguments: ir.Value) -> list[ir.Value]:
        known = {n: _condition(host, x) if n.type == BOOL else x for n, x in zip(scores, arguments, strict=False)}
        expressions = HostExpressions(host, program, arguments[len(scores) :], known, rows)
        for i in computed:
            reduction = program.reductions[i]
            value = expressions.emit(reduction.value)
            with ir.Location.name(reduction.name, reduction.location or ir.Location.current):
                known[program.red(i)] = build.reduce(value, reduction.kind)
        weights = [expressions.emit(w) for w, _, _ in terms] or [host.constant(0.0)]
        return [*weights, *[expressions.emit(value) for _, value in row_values]]

    names = [(f"s_{i}" if i else "s", host.score) for i in range(len(scores))]
    build.piece("row", [*names, *[(name, ir.IndexType.get()) for name in PAIR_NAMES[:3]]], body)


def _condition(host: HostBuilder, score: ir.Value) -> ir.Value:
    """Whether a score that is 1 or 0 is 1."""
    return arith.cmpf(arith.CmpFPredicate.OGT, score, host.constant(0.5))
