"""Rewrites of single ops by MLIR's pattern driver: a table of rules by the names of ops."""

from collections.abc import Callable, Mapping

from attn_mlir.mlir import ir, rewrite

Rule = Callable[[ir.Operation], ir.Value | None]
"""Makes the value that replaces an op's result, at the insertion point; None leaves the op alone."""


def apply_rules(root: ir.Operation, rules: Mapping[str, Rule]) -> bool:
    """Replaces ops inside `root`, each visited once, by what their rules make; returns whether there was one. Raises what a rule raises."""
    found: list[Exception | None] = []

    def pattern(op: ir.Operation | ir.OpView, rewriter: rewrite.PatternRewriter) -> bool:
        operation = op.operation
        failed = bool(found) and found[-1] is not None
        try:
            with operation.location, rewriter.ip:
                new = None if failed else rules[operation.name](operation)
        except Exception as error:  # must not pass through MLIR, which is compiled without exceptions
            found.append(error)
            return True
        if new is None:
            return True
        rewriter.replace_op(operation, [new])
        found.append(None)
        return False

    patterns = rewrite.RewritePatternSet(root.context)
    for name in rules:
        patterns.add(name, pattern)
    rewrite.walk_and_apply_patterns(root, patterns.freeze())
    if found and (error := found[-1]) is not None:
        raise error
    return bool(found)
