"""What a caller of attention or linear attention asks for, as one object, and the trace and the call that it comes to."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from attn_mlir.api.dropout import NONE, Dropout
from attn_mlir.api.inputs import Layout, device_type
from attn_mlir.api.linear_inputs import NO_DELTA, DeltaForm, Erasing, LinearCall
from attn_mlir.api.scale import forms, scale_form
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend import program
from attn_mlir.frontend.cache import TraceCache
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.dropout import DropoutForm
from attn_mlir.frontend.entry import Entry
from attn_mlir.frontend.given import Inputs
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from attn_mlir.runtime.call import Call, Problem

Mods = tuple[Callable[..., Any] | None, ...]
"""Those of q, k, v, the decay, the skip and what is erased."""
_CACHE = TraceCache()
_MAX_SPLITS = 1024


class Options(NamedTuple):
    """What is computed of q, k and v, and what is returned."""

    functions: tuple[Any, ...]
    """query_mod, key_mod, value_mod, score_mod, mask_mod and row."""
    scale: float | None = None
    layout: Layout = "bhsd"
    lse: bool = False
    states: bool = False
    device: Any = None
    deterministic: bool = False
    splits: int = 0
    invariant: bool = False

    def by_value(self, layout: Layout) -> tuple[Any, ...] | None:
        """What they say besides functions, in a key; None where the scale is no number of Python, and may change."""
        return self._replace(layout=layout)[1:] if self.scale is None or type(self.scale) in (int, float) else None

    def find(self, inputs: Inputs, device: Any, dropout: DropoutForm | None = None) -> tuple[Entry, Scan, float]:
        """The trace of the functions, made now if it is new, what it captures, and the scale where that is an argument."""
        functions, scale, _, lse, states, _, _, splits, invariant = self
        if inputs.extra_dims:
            own, others, factor = forms([scale_form(scale, dim) for dim in (inputs.head_dim, *inputs.extra_dims)])
        else:
            (own, factor), others = scale_form(scale, inputs.head_dim), ()

        def trace() -> program.Traced:
            query_mod, key_mod, value_mod, score_mod, mask_mod, row = functions
            if row is None:
                raise ArgumentError("row must be a function from a row of scores to its weights, got None")
            form = program.Definition(row, score_mod, mask_mod, query_mod, key_mod, value_mod, own, others, lse, states, dropout)
            traced = program.trace(form, inputs, device)
            return dataclasses.replace(traced, splits=splits, invariant=invariant) if splits or invariant else traced

        return *_CACHE.find(functions, (inputs.key, own, others, lse, states, dropout, splits, invariant), trace), factor

    def call(
        self, problem: Problem, qkv: Sequence[torch.Tensor], dropout: Dropout = NONE, given: Mapping[str, Any] = MappingProxyType({})
    ) -> Call:
        """A call of attention; `given` are values that programs take besides captures and dropout, by name."""
        entry, scan, factor = self.find(problem.inputs, problem.device, dropout.form)
        captures = entry.captures(scan, factor, {**dropout.values, **given} if given else dropout.values)
        device = problem.device_type if self.device is None else self.target(problem)
        return Call(entry, problem, (*qkv, *captures), problem.layout, device, self.deterministic)

    def target(self, problem: Problem) -> str:
        """The device that computes a call."""
        return problem.device_type if self.device is None else device_type(self.device) or ""

    def named(self, results: Sequence[Any], entry: Entry) -> Any:
        """What a call returns of its results."""
        return named_results(results, entry.traced.weights, entry.traced.outputs, self.lse, self.states)


class RecurrenceForm(NamedTuple):
    """What shapes the trace of a linear attention besides its mods; see `LinearDefinition`."""

    element: str
    head_dim: int
    value_dim: int
    scale: str | float
    decay: str = "none"
    initial_state: bool = False
    final_state: bool = False
    offsets: str = ""
    segment: int | None = None
    delta: DeltaForm = NO_DELTA

    @property
    def inputs(self) -> Inputs:
        """The element type and head dimensions."""
        return Inputs(self.element, self.head_dim, self.value_dim)

    def definition(self, mods: Mods, **named: Any) -> LinearDefinition:
        """What is traced for mods; `named` are further fields of the definition."""
        q_mod, k_mod, v_mod, decay_mod, skip_mod, erase_mod = mods
        given = self.scale, self.decay, self.initial_state, self.final_state, self.offsets, self.segment
        return LinearDefinition(q_mod, k_mod, v_mod, decay_mod, skip_mod, *given, *self.delta, erase_mod, **named)

    def find(self, mods: Mods, device: Any) -> tuple[Entry, Scan]:
        """The trace of mods, made now if it is new, and what it captures."""
        return _CACHE.find(mods, self, lambda: trace_linear(self.definition(mods), self.inputs, device))


class LinearOptions(NamedTuple):
    """What is computed of the inputs of a linear attention, and what is returned."""

    scale: float | None
    final: bool
    """Whether the final state is returned, too."""
    layout: str
    device: Any
    segment: int | None
    mods: Mods
    read_before: bool

    def form(self, call: LinearCall) -> RecurrenceForm:
        """The form of a call."""
        return call_form(call, scale_form(self.scale, call.problem.inputs.head_dim)[0], self.final, self.segment)

    def first_form(self) -> RecurrenceForm:
        """What stands for the form of a call until there was one."""
        erases = self.mods[5] is not None or self.read_before
        delta = ("step" if erases else "none", False, False, "decayed" if self.read_before else "after")
        return RecurrenceForm("f32", 64, 64, scale_form(self.scale, 64)[0], "step", False, self.final, "", self.segment, delta)

    def erasing(self, erase: Any, erase_key: Any, removed_key: Any) -> Erasing:
        """What a caller says about erasing."""
        return Erasing(erase, self.mods[5], erase_key, removed_key, self.read_before)


def call_form(call: LinearCall, scale: str | float, final: bool, segment: int | None) -> RecurrenceForm:
    """The form of a call of linear attention whose scale has this form."""
    x, initial = call.problem.inputs, call.given["initial_state"] is not None
    return RecurrenceForm(
        x.element, x.head_dim, x.value_dim, scale, call.decay_form, initial, final, call.offsets, segment, call.delta_form
    )


def named_results(results: Sequence[Any], weights: int, names: Sequence[str], lse: bool, states: bool) -> Any:
    """o, or a tuple of one for each of `weights`; after it lse, and the row outputs called `names`, as far as they are wanted."""
    o = results[0] if weights == 1 else tuple(results[:weights])
    if not (lse or states):
        return o
    if not states and weights == 1 and len(results) == 2:
        return o, results[1]
    rows = dict(zip(names, results[weights:], strict=True))
    wanted = (o, rows["lse"]) if lse else (o,)
    return (*wanted, rows) if states else wanted


def check_splits(num_splits: Any) -> int:
    """The number of parts that a caller asks for; 0: chosen. Raises ArgumentError."""
    if isinstance(num_splits, bool) or not isinstance(num_splits, int) or not 0 <= num_splits <= _MAX_SPLITS:
        raise ArgumentError(f"num_splits must be an integer from 0 (chosen) to {_MAX_SPLITS}, got {num_splits!r}")
    return num_splits
