"""`torch.autograd.Function` in a user's function: its forward is traced, and so is its backward, as the derivative of what it gives.

A result is the detached value of forward, plus an `attn.slope` for each argument that backward has a gradient for. Backward is called
with symbols for the gradients of the results, in which what it returns is linear; their factors are the slopes.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import _SingleLevelFunction

from attn_mlir import forks
from attn_mlir.frontend import ops, scope, tensors, torch_functions
from attn_mlir.frontend.node import Node
from attn_mlir.frontend.values import Value, lift, wrap

_LOCK = forks.lock()
_ADVICE = "write what it computes with torch's functions, or compute it before the call and capture the result"
_tracing = 0


class AutogradContext:
    """What forward, setup_context and backward get as `ctx`."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count
        self.saved_tensors: tuple[Any, ...] = ()
        self.constant: list[Any] = []

    def save_for_backward(self, *values: Any) -> None:
        self.saved_tensors = values

    def save_for_forward(self, *values: Any) -> None:
        pass

    def mark_non_differentiable(self, *values: Any) -> None:
        self.constant += values

    def mark_dirty(self, *values: Any) -> None:
        raise scope.fail("changes an argument of a torch.autograd.Function in place", "traced values are read only; return a new one")

    def set_materialize_grads(self, value: bool) -> None:
        pass


@contextmanager
def intercepted() -> Iterator[None]:
    """Within, `apply` of torch.autograd.Functions is traced where this thread traces.

    torch runs values that are no tensors through forward, and forgets backward. Methods that were bound before, as by
    `square = Square.apply`, look up the `apply` of the base class at every call.
    """
    global _tracing
    with _LOCK:
        _tracing += 1
        if _tracing == 1:
            Function.apply = classmethod(_applied)  # type: ignore[method-assign, assignment]
            _SingleLevelFunction.apply = classmethod(_applied_below)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        with _LOCK:
            _tracing -= 1
            if _tracing == 0:
                Function.apply = _APPLY  # type: ignore[method-assign]
                del _SingleLevelFunction.apply  # type: ignore[attr-defined]


_APPLY = Function.__dict__["apply"]


def _applied(kind: Any, *args: Any, **kwargs: Any) -> Any:
    if not scope.is_tracing():
        return _APPLY.__func__(kind, *args, **kwargs)
    if _of_operator(kind):
        return _apart(_APPLY.__get__(None, kind), args)
    if kwargs:
        args = _bound(kind, args, kwargs)
    return _traced_or_recorded(kind, args)


def _applied_below(kind: Any, *args: Any, **kwargs: Any) -> Any:
    below = torch._C._FunctionBase.__dict__["apply"].__get__(None, kind)  # type: ignore[attr-defined]
    if not scope.is_tracing():
        return below(*args, **kwargs)
    if _of_operator(kind):
        return _apart(below, args)
    return _traced_or_recorded(kind, args)


def _of_operator(kind: Any) -> bool:
    """Whether torch made this Function for a custom operator: the operator's call is the step of the tape, with all that it does."""
    return kind.__module__ == "torch._library.autograd"


def _apart(apply: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What `apply` gives; while tracing, what it does inside is no part of the trace."""
    with scope.paused(), torch._C.DisableTorchFunction():
        return apply(*args)


def _bound(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    first = () if _separate(kind) else (None,)
    bound = inspect.signature(kind.forward).bind(*first, *args, **kwargs)
    bound.apply_defaults()
    return bound.args[len(first) :]


def _separate(kind: Any) -> bool:
    """Whether forward gets no `ctx`, which setup_context fills."""
    return kind.setup_context is not _SingleLevelFunction.setup_context


def _traced_or_recorded(kind: Any, args: tuple[Any, ...]) -> Any:
    if torch_functions.is_traced_call(args):
        return _trace(kind, args)
    return torch_functions.real(Applied(kind), kind.__name__, args)


class Applied:
    """`apply` of one Function on tensors, as a step of the tape; while tracing, what it does inside is no part of the trace."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def __call__(self, *args: Any) -> Any:
        return _apart(self._kind.apply, args)


def _trace(kind: Any, args: tuple[Any, ...]) -> Any:
    name = kind.__name__
    if kind.backward is _SingleLevelFunction.backward and kind.vjp is _SingleLevelFunction.vjp:
        raise scope.fail(f"calls {name}.apply, and {name} has no backward", "give it one")
    ctx = AutogradContext(len(args))
    if _separate(kind):
        result = kind.forward(*args)
        kind.setup_context(ctx, args, result)
    else:
        result = kind.forward(ctx, *args)
    outputs = result if isinstance(result, tuple) else (result,)
    if scope.current().scope.kind != "mask":  # type: ignore[union-attr]
        factors = _factors(kind, ctx, args, len(outputs))
        outputs = tuple([_with_slopes(kind, ctx, args, x, [by.get(i) for by in factors]) for i, x in enumerate(outputs)])
    return outputs if isinstance(result, tuple) else outputs[0]


def _with_slopes(kind: Any, ctx: AutogradContext, args: Sequence[Any], output: Any, factors: Sequence[Node | None]) -> Any:
    """One of the results of forward, with the derivative `factors` by the arguments."""
    if isinstance(output, (int, float, type(None))) or any(output is x for x in ctx.constant):
        return output
    node = lift(output)
    if node.kind != "float":
        return output

    result = wrap(ops.detach(node))
    for argument, factor in zip(args, factors, strict=True):
        if factor is None or isinstance(argument, (int, float, type(None))):
            continue
        x = _scalar(kind, argument)
        if x.kind == "float":
            result = result + wrap(ops.slope(x, factor))
    return result


def _factors(kind: Any, ctx: AutogradContext, args: Sequence[Any], count: int) -> list[dict[int, Node]]:
    """The factors of the gradients of the results, by their positions, in that of each argument."""
    trace = scope.current()
    symbols = [Node("argument", "float", attribute=f"gradient{i}", order=trace.next_order(), scope=trace.scope) for i in range(count)]
    backward = kind.vjp if kind.backward is _SingleLevelFunction.backward else kind.backward
    found = backward(ctx, *map(wrap, symbols))
    found = list(found) if isinstance(found, tuple) else [found]
    if len(found) < len(args) or any(x is not None for x in found[len(args) :]):
        raise scope.fail(f"{kind.__name__}.backward returned {len(found)} gradients for {len(args)} arguments", "return one for each")
    linear = LinearForm(symbols)
    factors = []
    for x in found[: len(args)]:
        form = {} if x is None else linear.form(lift(x))
        if form is None:
            raise scope.fail(f"{kind.__name__}.backward is not linear in the gradient that it gets", _ADVICE)
        factors.append(form)
    return factors


def _scalar(kind: Any, argument: Any) -> Node:
    rank = argument.dim() if isinstance(argument, (torch.Tensor, tensors.CapturedTensor)) else 0
    if rank or not isinstance(argument, (Value, torch.Tensor, tensors.CapturedTensor)):
        what = f"a tensor of {rank} dimensions" if rank else f"a {type(argument).__name__}"
        raise scope.fail(
            f"{kind.__name__}.backward gives a gradient of {what} that is passed along with traced values",
            "read the number before: pass table[h], not table",
        )
    return lift(argument)


class LinearForm:
    """Expressions as sums of symbols with factors; one without a symbol has no form, unless it is 0."""

    def __init__(self, symbols: Sequence[Node]) -> None:
        self._found: dict[Node, dict[int, Node] | None] = {x: {i: ops.constant(1.0)} for i, x in enumerate(symbols)}
        self._free: set[Node] = set()

    def form(self, root: Node) -> dict[int, Node] | None:
        """The factors of the symbols; None where `root` is not linear in them."""
        stack = [root]
        while stack:
            node = stack[-1]
            missing = [] if node in self._found else [x for x in node.operands if x not in self._found]
            if missing:
                stack += missing
                continue
            stack.pop()
            if node not in self._found:
                self._found[node] = self._form(node)
        return self._found[root]

    def _form(self, node: Node) -> dict[int, Node] | None:
        if node.is_constant or all(x in self._free or x.is_constant for x in node.operands):
            self._free.add(node)
            return {} if node.known == 0.0 else None
        forms = [self._found[x] for x in node.operands]
        match node.op, forms:
            case "arith.negf" | "attn.detach", [dict() as a]:
                change = ops.neg if node.op == "arith.negf" else ops.detach
                return {i: change(x) for i, x in a.items()}
            case "arith.addf", [dict() as a, dict() as b]:
                return _combined(a, b, ops.add)
            case "arith.subf", [dict() as a, dict() as b]:
                return _combined(a, {i: ops.neg(x) for i, x in b.items()}, ops.add)
            case "arith.mulf", [dict() as a, None] if node.operands[1] in self._free:
                return {i: ops.mul(x, node.operands[1]) for i, x in a.items()}
            case "arith.mulf", [None, dict() as b] if node.operands[0] in self._free:
                return {i: ops.mul(node.operands[0], x) for i, x in b.items()}
            case "arith.divf", [dict() as a, None] if node.operands[1] in self._free:
                return {i: ops.truediv(x, node.operands[1]) for i, x in a.items()}
            case "arith.select", [None, dict() as a, dict() as b] if node.operands[0] in self._free:
                zero = ops.constant(0.0)
                return {i: ops.select(node.operands[0], a.get(i, zero), b.get(i, zero)) for i in {**a, **b}}
        return None


def _combined(a: dict[int, Node], b: dict[int, Node], add: Any) -> dict[int, Node]:
    return a | b | {i: add(a[i], b[i]) for i in a if i in b}
