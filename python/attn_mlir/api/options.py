"""What a caller of attention asks for, as one object, and the trace and the call that it comes to."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from attn_mlir.api.dropout import NONE, Dropout
from attn_mlir.api.inputs import Layout, device_type
from attn_mlir.api.results import named_results
from attn_mlir.api.scale import forms, scale_form
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend import program
from attn_mlir.frontend.cache import TraceCache
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.dropout import DropoutForm
from attn_mlir.frontend.entry import Entry
from attn_mlir.frontend.given import Inputs
from attn_mlir.runtime.call import Call, Problem

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

    def find(self, inputs: Inputs, device: Any, dropout: DropoutForm | None = None) -> tuple[Entry, Scan, float]:
        """The trace of the functions, made now if it is new, what it captures, and the scale where that is an argument."""
        functions, scale, _, lse, states, _, _, splits, invariant = self
        if inputs.extra_dims:
            own, others, factor = forms(scale, inputs.head_dim, inputs.extra_dims)
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


def check_splits(num_splits: Any) -> int:
    """The number of parts that a caller asks for; 0: chosen. Raises ArgumentError."""
    if isinstance(num_splits, bool) or not isinstance(num_splits, int) or not 0 <= num_splits <= _MAX_SPLITS:
        raise ArgumentError(f"num_splits must be an integer from 0 (chosen) to {_MAX_SPLITS}, got {num_splits!r}")
    return num_splits
