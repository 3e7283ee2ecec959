"""Builds the errors of tracing: what, where, the line with a caret, and what to write instead."""

import ast
from collections.abc import Iterator

from attn_mlir.errors import TraceError
from attn_mlir.frontend import where
from attn_mlir.frontend.node import Position


def failure(subject: str, problem: str, advice: str = "", position: Position | where.Where | None = None) -> TraceError:
    """A TraceError about `subject` (such as "score_mod `alibi`") at `position` (default: the user's current line)."""
    at = where.here() if position is None else position
    if isinstance(at, tuple):
        at = where.resolve(at)
    parts = [f"{subject}: {problem}"]
    if at is not None:
        parts.append(at.snippet())
    if advice:
        parts.append(f"  help: {advice}")
    return TraceError("\n".join(parts))


def branch_advice(position: Position | None) -> tuple[str, str]:
    """What to say about a traced value used as a Python truth value: (construct, advice)."""
    general = "write torch.where(cond, a, b) instead of if, a & b instead of and, a | b instead of or, ~a instead of not"
    if position is None:
        return "a truth value", general
    at = where.resolve(position)
    tree = where.syntax_tree(at.file)
    if tree is None or not at.end_column:
        return "a truth value", general
    for node in _around(tree, at):
        found = _describe(node, at)
        if found is not None:
            return found
    return "a truth value", general


def _around(tree: ast.Module, at: where.Where) -> Iterator[ast.AST]:
    """The nodes whose source range holds `at`, innermost first."""
    found = [node for node in ast.walk(tree) if _holds(node, at)]
    yield from reversed(found)


def _holds(node: ast.AST, at: where.Where) -> bool:
    if not isinstance(node, (ast.expr, ast.stmt)) or node.end_lineno is None:
        return False
    return (
        node.lineno <= at.line
        and at.end_line <= node.end_lineno
        and not (
            (node.lineno == at.line and node.col_offset > at.column - 1)
            or (node.end_lineno == at.end_line and (node.end_col_offset or 0) < at.end_column - 1)
        )
    )


def _describe(node: ast.AST, at: where.Where) -> tuple[str, str] | None:
    match node:
        case ast.Compare(ops=[_, _, *_]):
            parts = [node.left, *node.comparators]
            pairs = [ast.Compare(parts[i], [op], [parts[i + 1]]) for i, op in enumerate(node.ops)]
            return "a chained comparison", "write " + " & ".join(f"({_text(pair)})" for pair in pairs)
        case ast.BoolOp(op=op, values=values):
            word, sign = ("and", "&") if isinstance(op, ast.And) else ("or", "|")
            return f"`{word}`", "write " + f" {sign} ".join(f"({_text(value)})" for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return "`not`", f"write ~({_text(operand)})"
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return "`if`", f"write torch.where({_text(test)}, {_text(body)}, {_text(orelse)})"
        case ast.Call(func=ast.Name(id=("max" | "min") as name), args=args):
            return f"Python's `{name}`", f"write torch.{name}imum({', '.join(_text(arg) for arg in args)})"
        case ast.If(test=test):
            return "`if`", f"compute both sides and write torch.where({_text(test)}, a, b)"
        case ast.While():
            return "`while`", "a loop must not depend on a traced value: unroll it, or use torch.where"
        case ast.Assert():
            return "`assert`", "check the inputs before the call instead"
        case ast.Call(func=ast.Name(id=name)):
            return f"`{name}(...)`", "write torch.where(cond, a, b), a & b, a | b or ~a instead"
    return None


def _text(node: ast.AST) -> str:
    return ast.unparse(node)
