"""`LinearAttentionEngine`: linear attention in the form of elementwise functions of q, k, v and the log decay."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any, Never

import torch

from attn_mlir.api.autocast import cast
from attn_mlir.api.call import linear_arguments, run_linear
from attn_mlir.api.custom_io import CustomIO, check_custom
from attn_mlir.api.engine_arguments import captures_with, custom_of, device_of, target_of, working_dtypes
from attn_mlir.api.engine_module import EngineModule
from attn_mlir.api.graph_tape import GraphEngine, call_in_graph, graph_values
from attn_mlir.api.inputs import refuse_jit_trace
from attn_mlir.api.linear_inputs import check_linear, check_segment
from attn_mlir.api.meta import LINEAR_KEYS, Shapes
from attn_mlir.api.options import RecurrenceForm
from attn_mlir.api.reports import LinearReport
from attn_mlir.api.tuning import tuning_of
from attn_mlir.api.unknown_arguments import unexpected
from attn_mlir.api.watched import guarded
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.cache import Entry, TraceCache
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.linear import trace_linear

Function = Callable[..., Any]
_CACHE = TraceCache()
_AXES = ("batch", "heads", "seq_len")


class LinearAttentionEngine(GraphEngine, LinearReport, EngineModule):
    """o_t = sum over s <= t of exp(g_(s+1) + ... + g_t) (q_mod(q_t) . k_mod(k_s)) v_mod(v_s), with g = decay_mod(decay).

    qkv_meta: meta_tensor(B, HQ, T, D), meta_tensor(B, HK, T, D) and meta_tensor(B, H, T, DV). custom_io: a CustomIO with the further
    inputs of a call; a dimension given as a number belongs to the axis at its place, [batch, heads, seq_len].
    q_mod, k_mod, v_mod, decay_mod: elementwise, f(x) or f(x, custom_io), optionally followed by b, h, t or b, h, t, d; h is the head of
    o. Of five parameters the second one is custom_io, unless it is called b.
    erase_mod: the share that the delta rule erases, such a function of 1; what custom_io has of it, say. segment_size: see
    `linear_attention`.

    The functions are traced when the object is made, so mistakes in them show at once. Gradients of q, k, v, decay and the custom
    inputs are derived.

    tune, tune_bwd: the first call of each kind measures kernels of the forward and of the backward pass, on devices whose backend has a
    tuner. tune_filename: the file where that is kept; what it holds is used in any case. Lengths share a result up to the next power of
    two. Inside torch.compile nothing is measured: what the last call outside of it found is used.
    """

    _subject, _custom_argument = "of_linear_engine", "custom_io"

    def __init__(
        self,
        qkv_meta: Any,
        q_mod: Function | None = None,
        k_mod: Function | None = None,
        v_mod: Function | None = None,
        decay_mod: Function | None = None,
        custom_io: CustomIO | None = None,
        tune: bool = False,
        tune_filename: str = "",
        tune_bwd: bool = False,
        device: Any = None,
        segment_size: int | None = None,
        erase_mod: Function | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unexpected(LinearAttentionEngine, unknown)
        self._begin(locals())
        self._shapes = Shapes(qkv_meta, LINEAR_KEYS, "[B, H, T, D], too")
        self._custom = _placed(custom_of(custom_io, "custom_io"), self._shapes)
        self._device, self._segment = device_of(device), check_segment(segment_size)
        self._tuning = tuning_of((bool(tune), tune_filename), (bool(tune_bwd), tune_filename), ("tune_filename",) * 2)
        self._mods = (q_mod, k_mod, v_mod, decay_mod, None, erase_mod)
        self._decay = "step"
        inputs = self._shapes.inputs
        self._usual = RecurrenceForm(inputs.element, inputs.head_dim, inputs.value_dim, 1.0, self._decay, segment=self._segment)
        self._dtypes = working_dtypes(len(self._custom.input_tensors), lambda dtypes: self._find(dtypes, None, self._decay))
        tuned = None if self._tuning is None else id(self._tuning)
        form = (self._shapes.inputs, self._custom.scan_key(), self._device, self._segment, tuned)
        self._watch(form, {"custom": tuple(self._custom.input_tensors)}, self._mods)
        self._end()

    def forward(self, q: Any, k: Any, v: Any, decay: Any, *custom: Any) -> Any:
        """o, [B, H, T, DV], for q [B, HQ, T, D], k [B, HK, T, D], v [B, H, T, DV], decay [B, H, T] float32, and the custom inputs in order.

        decay may also be [B, H, T, D], one for each channel of k.
        """
        if self._captured and (current := self.current()) is not self:
            return current.forward(q, k, v, decay, *custom)
        q, k, v = cast(q, k, v, dtype=self._shapes.dtype)
        call = check_linear((q, k, v), decay, None, None, "bhsd")
        if not call.decay_form.startswith("step"):
            raise ArgumentError("decay must be a tensor [B, H, T], or [B, H, T, D] where every channel of k has its own")
        self._shapes.check(call.problem, call.q.dtype)
        problem = call.problem
        if custom:
            problem = dataclasses.replace(problem, sizes={**problem.sizes, "Hq": problem.sizes["H"]})
        named = check_custom(self._custom.input_tensors, custom, problem, "q, k, v and decay", "custom_io")
        target = target_of("LinearAttentionEngine", self._device, call.problem)
        if self._decay != call.decay_form:  # modules take their time to set attributes
            self._decay = call.decay_form
        dtypes = tuple([tensor.dtype for tensor in custom])
        if torch.compiler.is_dynamo_compiling():
            from attn_mlir.api.compiled import in_transform, outside

            if in_transform():
                return outside(self, q, k, v, decay, *custom)
            return self._in_graph(call, named, dtypes)
        if self._dtypes != dtypes:
            self._dtypes = dtypes
        refuse_jit_trace()
        entry, scan = self._find(dtypes, call.problem.device, call.decay_form)
        return run_linear(entry, call, captures_with(named, entry, scan), "bhsd", target, self._tuning)

    def _in_graph(self, call: Any, named: dict[str, torch.Tensor], dtypes: tuple[torch.dtype, ...]) -> Any:
        """The same inside torch.compile."""
        self._look_again()
        guarded(self._watched[0])
        entry, name, sources, needed, steps = self._graph_program(0, call.problem.device.type, (call.decay_form,), *dtypes)
        values = graph_values(sources, needed, self._steps[steps], self._accessors[0], {"custom": [*named.values()], "input": call.given})
        q, k, values = linear_arguments(entry.traced, call, values)
        return call_in_graph((q, k, call.v), values, sources, name, "bhsd")[0]

    def _traced(self) -> Entry:
        return self._find(self._dtypes, None, self._decay)[0]

    def _find(self, dtypes: tuple[torch.dtype, ...], device: Any, decay: str) -> tuple[Entry, Scan]:
        form = self._form(decay)

        def trace() -> Any:
            named = dict(zip(self._custom.input_tensors, dtypes, strict=True))
            return trace_linear(form.definition(self._mods, custom=self._custom, dtypes=named), form.inputs, device)

        return _CACHE.find(self._mods, (form, self._custom.scan_key(), dtypes), trace)

    def _form(self, decay: str) -> RecurrenceForm:
        """The form of a call with such a decay."""
        return self._usual if decay == self._usual.decay else self._usual._replace(decay=decay)


def _placed(custom: CustomIO, shapes: Shapes) -> CustomIO:
    """Dimensions that are numbers as the names of the axes at their places, where these have that size."""
    sizes = dict(zip(_AXES, (shapes.fixed("B"), shapes.fixed("H"), shapes.fixed("Sq")), strict=True))
    placed = {}
    for name, tensor in custom.input_tensors.items():
        axes = itertools.zip_longest(tensor.dims, _AXES[: len(tensor.dims)])
        placed[name] = tuple(axis if isinstance(dim, int) and dim > 1 and axis and sizes[axis] == dim else dim for dim, axis in axes)
    return CustomIO(placed)
