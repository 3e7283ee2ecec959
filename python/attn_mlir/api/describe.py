"""Describes what an Attention or an AttentionEngine computes, how, and what is slow of it."""

from collections.abc import Callable, Iterator

from attn_mlir.diagnostics import DiagnosticError
from attn_mlir.dialects import loaded
from attn_mlir.frontend.entry import Entry
from attn_mlir.frontend.program import Traced
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.derivation import DerivationError
from attn_mlir.passes.differentiation.custom_vjp import formulas
from attn_mlir.passes.explain import explain
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from attn_mlir.runtime.programs import Program


def explain_traced(text: str) -> str:
    """How a traced program is computed: what was derived from its row."""
    with LOCK, loaded():
        return explain(ir.Module.parse(text).operation)


def explain_entry(entry: Entry, text: str) -> str:
    """The same of the text of a trace, and what is slow of what was compiled of it."""
    return explain_traced(text) + slow_of(entry)


def slow_of(entry: Entry) -> str:
    """What `explain()` says of kernels, compiled of a trace, that are slower than their device can do or do without its matrix tiles.

    And of inputs that they copied.
    """
    every = [served for program in entry.programs if program is not None for served in (program, *program.served.values())]

    def lines(kind: str, found: Callable[[Program], dict[str, str]], where: str = "") -> list[str]:
        told = {name: reason for program in every for name, reason in found(program).items()}
        return [f"{kind}: {name}{where}: {reason}\n" for name, reason in told.items()]

    with LOCK:
        scalar = lines("without matrix tiles", lambda program: program.told("without_tiles"))
    copied = lines("copied", lambda program: program.told("copies"), ", in a call of this process")
    return "".join([*lines("slow", lambda program: program.slow), *scalar, *copied])


def explain_online(traced: Traced, name: str) -> str:
    """The online program as written, the row it comes to with what follows from it, and the backward pass of `name` if it has one."""
    with LOCK, loaded():
        parts = [*_forward(traced)]
        if traced.written[1]:
            parts.append(_backward(traced, name))
        return "\n".join(parts)


def _forward(traced: Traced) -> Iterator[str]:
    yield "as written\n" + explain(ir.Module.parse(traced.located).operation)
    module = ir.Module.parse(traced.located)
    try:
        Pipeline.parse("attn-recover-rows", registry()).run(module)
    except DiagnosticError as error:
        reason = "; ".join(diagnostic.message for diagnostic in error.diagnostics)
        yield f"no row follows from it, and so no merge rule and no derived backward: {reason}\n"
    else:
        yield "derived from it\n" + explain(module.operation)


def _backward(traced: Traced, name: str) -> str:
    module = ir.Module.parse(traced.written[1])
    functions = {ir.StringAttr(view.operation.attributes["sym_name"]).value: view.operation for view in module.body.operations}
    try:
        lines = formulas(functions["attention_weight"], functions["attention_dscore"], traced.outputs)
    except DerivationError as error:
        lines = [f"not understood: {error}"]
    return "\n  ".join([f"backward as {name} writes it, which is the one that is used", *lines]) + "\n"
