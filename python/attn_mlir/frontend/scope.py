"""The state of one tracing: the piece being traced, the captured values it used, and what it was specialised on."""

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.errors import TraceError
from attn_mlir.frontend import report, where
from attn_mlir.frontend.decisions import Decision, decision
from attn_mlir.frontend.node import Kind, Node, Source

_LOCAL = threading.local()
ErrorT = TypeVar("ErrorT", bound=Exception)


@dataclasses.dataclass(eq=False, slots=True)
class Scope:
    """The piece being traced: its kind ("score", "row", ...) and how messages call the user's function."""

    kind: str
    subject: str
    arguments: tuple[Node, ...] = ()
    pair: Any = None
    """The `partners.Pair` of a mod that reads another channel, once it does."""


@dataclasses.dataclass(frozen=True, slots=True)
class Captured:
    """One further argument of the function: a tensor or a scalar that the user's functions read."""

    source: Source
    name: str
    kind: CaptureKind
    element: str = ""
    """Tensors: the element type as in memory, e.g. "f16"; "u8" is an i8 that holds no sign."""
    rank: int = 0
    constant: Any = None
    """The value itself, where it cannot be looked up again by its source."""
    columns: int | None = None
    """Tensors that products multiply: their head dimension, which is part of the type."""


class Trace:
    """Collects what several pieces of one attention have in common. Use `with trace:` around tracing."""

    def __init__(self) -> None:
        self.captures: dict[Source, Captured] = {}
        self.specialised: dict[Source, Any] = {}
        self.decisions: dict[Node, Decision] = {}
        self.nonzero: set[Source] = set()
        """Captured integers that are divided by."""
        self.reusable = True
        """False when a later call could not find the captured values again: then it must trace again."""
        self.tensors: dict[int, tuple[Source, str]] = {}
        """The captured tensors, and what torch computes of them alone, by identity: source and name."""
        self.arrays: set[int] = set()
        """Those of them that stand for numpy arrays, by identity."""
        self.fresh: dict[int, Any] = {}
        """Tensors made inside the user's function from constants, by identity."""
        self.keep: list[Any] = []
        """Keeps tensors alive whose identity is recorded."""
        self.recorder: Any = None
        """The `tape.TapeRecorder` of what is computed of captured tensors, once there is something."""
        self.grad = torch.is_grad_enabled()
        """Whether gradients are recorded around the functions; within, `torch.no_grad()` may say otherwise."""
        self.numbers: dict[int, Node] = {}
        """Python floats that came out of captured tensors, by identity."""
        self.changed: list[int] = []
        """The memory of tensors that were to be changed in place, which is refused."""
        self.allowed: int | None = None
        """The identity of one of them, which may be used once more, next."""
        self.refused: TraceError | None = None
        """The error about a captured tensor that was to be changed."""
        self.insisted: Exception | None = None
        """An error that the function may have caught, and that counts all the same."""
        self.detached: set[Node] = set()
        """Numbers that were computed where the function records no gradients."""
        self.generators: list[Any] = []
        """Generators of random numbers that the functions capture."""
        self.stateful = False
        """Whether the functions reach modules, such as `time`, that give another value at every call."""
        self.labels: dict[Node, str] = {}
        """Names of nodes that no variable of the user gives."""
        self.scope: Scope | None = None
        self.device: Any = None
        """What `.device` of a traced value says."""
        self.largest = 3.4028234663852886e38
        """The largest finite score."""
        self.head_dim = 0
        """The head dimension of q and k, where mods may read other channels."""
        self.heads_of = "q"
        """The input whose heads `num_heads()` counts."""
        self._count = 0
        self._nodes: dict[Source, Node] = {}

    def __enter__(self) -> "Trace":
        _stack().append(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _stack().pop()

    def next_order(self) -> int:
        self._count += 1
        return self._count

    def argument(self, name: str, kind: Kind, *, varying: bool = False, nonnegative: bool = False) -> Node:
        """A new argument of the current piece."""
        return Node("argument", kind, attribute=name, order=self.next_order(), scope=self.scope, varying=varying, nonnegative=nonnegative)

    def capture(self, captured: Captured, known: Any = None) -> Node:
        """The node of a captured scalar; the same for the same source."""
        self.captures.setdefault(captured.source, captured)
        if captured.source not in self._nodes:
            sources = frozenset([captured.source]) if known is not None else frozenset()
            kind = captured.kind.node
            self._nodes[captured.source] = Node(
                "capture", kind, attribute=captured.source, order=self.next_order(), known=known, sources=sources, position=where.here()
            )
        return self._nodes[captured.source]

    def size(self, source: Source, name: str, known: int | None = None) -> Node:
        """The node of a tensor's size: `source` is ("size", tensor source, dimension)."""
        if source not in self._nodes:
            sources = frozenset([source]) if known is not None else frozenset()
            self._nodes[source] = Node(
                "size",
                "int",
                attribute=(source, name),
                order=self.next_order(),
                nonnegative=True,
                known=known,
                sources=sources,
                position=where.here(),
            )
        return self._nodes[source]

    def tape(self, captures: Sequence[Captured]) -> Any:
        """The `tape.Tape` of the finished trace, whose program takes `captures`; None where nothing is computed of captured tensors."""
        if self.recorder is None:
            return None
        read = [source for decision in self.decisions.values() for source in decision.condition.sources]
        return self.recorder.finish([captured.source for captured in captures], [*self.specialised, *read])

    def decide(self, node: Node) -> bool:
        """What a condition that is known while tracing comes to; the trace is then good for this outcome only."""
        if node not in self.decisions and not node.is_constant:
            made = decision(node) if node.kind == "bool" else None
            if made is None:
                return bool(self.concrete(node))
            self.decisions[node] = made
        return bool(node.known)

    def concrete(self, node: Node) -> Any:
        """The value of a node that is known while tracing; the trace is then good for this value only."""
        for source in node.sources:
            known = self._nodes[source].known
            self.specialised[source] = known
        return node.known


def _stack() -> list[Trace]:
    if not hasattr(_LOCAL, "stack"):
        _LOCAL.stack = []
    return _LOCAL.stack


def current() -> Trace:
    """The trace in progress."""
    stack = _stack()
    if not stack or stack[-1].scope is None:
        raise TraceError("a traced value is used outside the function that it was passed to; return what you need instead")
    return stack[-1]


@contextmanager
def paused() -> Iterator[None]:
    """Within, no function is being traced in this thread."""
    kept, _LOCAL.stack = _stack(), []
    try:
        yield
    finally:
        _LOCAL.stack = kept


def is_tracing() -> bool:
    """Whether a user's function is being traced in this thread."""
    stack = _stack()
    return bool(stack) and stack[-1].scope is not None


def captured_number(x: float) -> Node | None:
    """The node of a Python float that came out of a captured tensor, as in `float(t[0])`; None for other floats."""
    stack = _stack()
    return stack[-1].numbers.get(id(x)) if stack and stack[-1].numbers else None


def refuse(problem: str, advice: str = "") -> TraceError:
    """The error of `fail`, which counts even where the user's function catches it: what it did then would hold for no position."""
    error = fail(problem, advice)
    return insist(error)


def insist(error: ErrorT) -> ErrorT:
    """Lets an error count even where the user's function catches it."""
    if is_tracing() and current().insisted is None:
        current().insisted = error
    return error


def fail(problem: str, advice: str = "") -> TraceError:
    """An error about the function being traced, at its current line."""
    scope = _stack()[-1].scope if _stack() else None
    return report.failure(scope.subject if scope else "attn_mlir", problem, advice)
