"""Calls a user's function on traced values, and checks what it gives back."""

import dataclasses
import functools
import inspect
import traceback
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from attn_mlir.errors import ArgumentError, AttnError, TraceError
from attn_mlir.frontend import autograd_functions, helps, ops, randomness, report, scope, vectors, where
from attn_mlir.frontend.node import Kind, Node, Position
from attn_mlir.frontend.scope import Scope, Trace
from attn_mlir.frontend.torch_functions import TracingMode
from attn_mlir.frontend.values import Value, lift, wrap


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter that the compiler passes: its default name and kind."""

    name: str
    kind: Kind
    varying: bool = False
    nonnegative: bool = False


def code_of(function: Any) -> CodeType | None:
    """The code that runs when `function` is called, for messages."""
    while isinstance(function, functools.partial) or _is_cached(function):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        function = getattr(type(function), "forward" if isinstance(function, torch.nn.Module) else "__call__", None)
    return function.__code__ if isinstance(function, FunctionType) else None


def subject(role: str, function: Any) -> str:
    """How messages call a user's function: its role and name."""
    code = code_of(function)
    name = getattr(function, "__name__", None) or (code.co_name if code else type(function).__name__)
    return f"{role} `{name}`"


def position_of(function: Any) -> Position | None:
    """Where a user's function is defined."""
    code = code_of(function)
    return None if code is None else Position(code, 0)


def definition(function: Any) -> where.Where | None:
    """The line on which a user's function is defined, that of the innermost one where decorators say what they wrap."""
    code = code_of(inspect.unwrap(function) if callable(function) else function)
    return None if code is None else where.definition(code)


def choose_arity(role: str, function: Any, choices: Sequence[Sequence[Parameter]]) -> tuple[Parameter, ...]:
    """The parameter list that `function` takes, with the user's own names; the first of `choices` that fits.

    Modules take what their `forward` takes; functions without a signature, such as torch.tanh, the first of `choices`.
    """
    if not callable(function):
        advice = helps.for_others(role, function)
        raise ArgumentError(f"{role} must be a function, got {type(function).__name__}" + (f": {advice}" if advice else ""))
    if _is_cached(function):
        problem = "a function cached with functools.lru_cache or functools.cache cannot be traced"
        raise report.failure(subject(role, function), problem, "leave the decorator out: traces are cached anyway", definition(function))
    try:
        signature = inspect.signature(getattr(function, "forward", function))
    except (TypeError, ValueError):
        return tuple(choices[0])
    for choice in choices:
        try:
            signature.bind(*choice)
        except TypeError:
            continue
        names = [p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        named = [dataclasses.replace(parameter, name=name) for parameter, name in zip(choice, names, strict=False)]
        return (*named, *choice[len(named) :])
    wanted = " or ".join(f"({', '.join(parameter.name for parameter in choice)})" for choice in choices)
    advice = helps.for_arity(role, _name(function), _required(signature), len(choices[0])) if "custom_fwd_inputs" not in wanted else ""
    advice = advice or f"write def {_name(function)}{wanted.split(' or ')[-1]}: ..."
    if all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()):
        advice += f"; or pass {_name(function)}() if that is what makes the function"
    taken = ", ".join(signature.parameters)
    raise report.failure(subject(role, function), f"takes ({taken}), but is called with {wanted}", advice, definition(function))


def refuse_score_mod(function: Any, parameters: Sequence[Parameter], scores: int = 1) -> None:
    """Raises TraceError for a score_mod that is given as the row; both may take `scores` and four parameters, and only the first tells."""
    name = parameters[0].name if len(parameters) == scores + 4 else "s"
    if name.startswith("s") and name not in ("s", "scores") and not name[1:].isdigit():
        problem = f"takes ({', '.join(parameter.name for parameter in parameters)}), as a score_mod does"
        advice = f"this looks like a score_mod: pass score_mod={_name(function)}; the first parameter of a row is called s or scores"
        raise report.failure(subject("row", function), problem, advice, definition(function))


def _required(signature: inspect.Signature) -> list[str]:
    """The names of the parameters that a call must give by position."""
    parameters = signature.parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _is_cached(function: Any) -> bool:
    return hasattr(function, "cache_info") and hasattr(function, "cache_clear")


def _name(function: Any) -> str:
    name = getattr(function, "__name__", "f")
    return name if name.isidentifier() else "f"


def trace_call(
    trace: Trace, kind: str, role: str, function: Callable[..., Any], parameters: Sequence[Parameter]
) -> tuple[tuple[Node, ...], Any]:
    """Calls `function` on fresh traced arguments; returns their nodes and whatever it returned.

    `kind` is the piece ("score", "row", ...). Keep the piece open (`trace.scope`) to convert the result.
    """
    trace.scope = Scope(kind, subject(role, function))
    arguments = tuple([trace.argument(p.name, p.kind, varying=p.varying, nonnegative=p.nonnegative) for p in parameters])
    trace.scope.arguments = arguments
    with trace:
        result = run(function, [wrap(argument) for argument in arguments])
    return arguments, result


def run(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Calls a user's function under the tracing mode; its exceptions become TraceErrors."""
    try:
        scope.current().insisted = None
        with TracingMode(), randomness.Draws(), autograd_functions.intercepted():
            result = randomness.checked(function, arguments)
    except AttnError:
        raise
    except Exception as error:
        raise scope.current().refused or _explain(scope.current().insisted or error) from error
    caught = scope.current().insisted
    if caught is not None:
        raise _explain(caught)
    return result


def _explain(error: Exception) -> TraceError:
    if isinstance(error, TraceError):
        return error
    trace = scope.current()
    name = trace.scope.subject if trace.scope else "the function"
    at = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if not where.is_ours(frame.f_code.co_filename):
            at = Position(frame.f_code, _last_instruction(error, frame))
    kind = "AttributeError" if isinstance(error, helps.UnknownAttribute) else type(error).__name__
    return report.failure(name, f"raised {kind}: {error}", helps.for_exception(error, at), at)


def _last_instruction(error: Exception, frame: Any) -> int:
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame is frame:
            return entry.tb_lasti
        entry = entry.tb_next
    return frame.f_lasti


def as_float(trace: Trace, result: Any, function: Any, role: str, what: str) -> Node:
    """The result of a function that returns a score."""
    node = _as_node(trace, result, function, role, what)
    if node.kind == "bool":
        raise _wrong(
            role,
            function,
            f"must return {what}, but returned a condition",
            "a condition belongs into mask_mod; or write torch.where(cond, a, b)",
        )
    with trace:
        return ops.cast(node, "float")


def as_condition(trace: Trace, result: Any, function: Any, role: str) -> Node:
    """The result of a mask function."""
    node = _as_node(trace, result, function, role, "True or False for each position")
    if node.kind != "bool":
        kind = "a float" if node.kind == "float" else "an integer"
        raise _wrong(
            role,
            function,
            f"must return True or False for each position, but returned {kind}",
            "compare: for example q_idx >= kv_idx, or x != 0",
        )
    return node


def _as_node(trace: Trace, result: Any, function: Any, role: str, what: str) -> Node:
    if result is None:
        raise _wrong(role, function, f"must return {what}, but returned None", "is a `return` missing?")
    if vectors.is_array(result):
        advice = "read one number of it with an index for each dimension, or reduce it"
        raise _wrong(role, function, f"must return {what}, but returned a tensor", advice)
    if not isinstance(result, (Value, bool, int, float, torch.Tensor)):
        raise _wrong(role, function, f"must return {what}, but returned a {type(result).__name__}", "return one traced value")
    with trace:
        node = lift(result)
        if node.scope is not None and node.scope is not trace.scope:
            raise _wrong(
                role,
                function,
                "returned a traced value that belongs to another function or another call",
                "compute it from the function's own parameters",
            )
        return node


def _wrong(role: str, function: Any, problem: str, advice: str) -> TraceError:
    return report.failure(subject(role, function), problem, advice, definition(function))
