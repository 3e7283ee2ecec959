"""`linear_attention(q, k, v, decay, ...)` and the compiled object `LinearAttention(...)`: recurrences of the user's own design."""

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any, Never

import torch

from attn_mlir.api.autocast import cast
from attn_mlir.api.engine_module import EngineModule
from attn_mlir.api.graph_parts import graph_part
from attn_mlir.api.inputs import device_type, refuse_jit_trace
from attn_mlir.api.linear_erase import DeltaForm, Erasing
from attn_mlir.api.linear_inputs import ORDERS, LinearCall, check_flags, check_linear, check_segment
from attn_mlir.api.reports import LinearReport
from attn_mlir.api.scale import scale_form
from attn_mlir.api.stages import slow_of, stage_of, stages_of
from attn_mlir.api.tuning import Tuning, Wish, tuning_of
from attn_mlir.api.unknown_arguments import unexpected, unexpected_in_call
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.cache import Entry, TraceCache
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.linear import LinearProgram, trace_linear
from attn_mlir.frontend.program import Traced
from attn_mlir.runtime.call import Call
from attn_mlir.runtime.dispatch import dispatch
from attn_mlir.runtime.orders import all_in_order

Function = Callable[..., Any]
Mods = tuple[Function | None, ...]
"""Those of q, k, v, the decay, the skip and what is erased."""
_CACHE = TraceCache()
# Element type, K, V, form of the scale, form of the decay, whether there are an initial and a final state, element type of cu_seqlens,
# positions of a segment, and perhaps the form of the delta rule.
_Form = tuple[Any, ...]


class LinearAttention(LinearReport, EngineModule):
    """Linear attention with everything but its inputs fixed: `LinearAttention(decay_mod=f)(q, k, v, decay)`.

    The functions are traced when the object is made, so mistakes in them show at once; programs are compiled at the first call for each
    dtype and head dimension. The arguments are those of `linear_attention`, and:

    tune: the first call of each kind (with or without gradients, per power of two of the length) measures kernels and keeps the
    fastest, on devices whose backend has a tuner. tune_file: where that is kept; what the file holds is used, also without `tune`.

    It is a torch module, see docs/modules.md.
    """

    _subject = "of_linear"

    def __init__(
        self,
        scale: float | None = 1.0,
        q_mod: Function | None = None,
        k_mod: Function | None = None,
        v_mod: Function | None = None,
        decay_mod: Function | None = None,
        output_final_state: bool = False,
        layout: str = "bhsd",
        device: str | torch.device | None = None,
        tune: bool = False,
        tune_file: str = "",
        segment_size: int | None = None,
        skip_mod: Function | None = None,
        erase_mod: Function | None = None,
        read_before_update: bool = False,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unexpected(LinearAttention, unknown)
        self._begin(locals())
        if not isinstance(layout, str) or layout not in ORDERS:
            raise ArgumentError(f'layout is "bhsd" or "bshd", got {layout!r}')
        check_flags(output_final_state=output_final_state, tune=tune, read_before_update=read_before_update)
        self._mods: Mods = (q_mod, k_mod, v_mod, decay_mod, skip_mod, erase_mod)
        self._erasing = Erasing(mod=erase_mod, read_before=bool(read_before_update))
        self._options = (scale, bool(output_final_state), layout, device_type(device), check_segment(segment_size))
        self._device = self._options[3] or "cpu"
        self._tuning = tuning_of(Wish(bool(tune), tune_file, bool(tune), tune_file))
        self._last: _Form = ("f32", 64, 64, scale_form(scale, 64)[0], "step", False, bool(output_final_state), "", segment_size,
                             _first_form(self._erasing))  # fmt: skip
        self._entry()
        self._end()

    @graph_part
    def forward(
        self,
        q: Any,
        k: Any,
        v: Any,
        decay: Any = None,
        initial_state: Any = None,
        cu_seqlens: Any = None,
        erase: Any = None,
        erase_key: Any = None,
        removed_key: Any = None,
        **unknown: Never,
    ) -> Any:
        """o, shaped as v; with output_final_state=True also the final state. See `linear_attention`."""
        if unknown:
            raise unexpected_in_call(LinearAttention, self.forward, unknown)
        if self._captured and (current := self.current()) is not self:
            return current.forward(q, k, v, decay, initial_state, cu_seqlens, erase, erase_key, removed_key)
        q, k, v = cast(q, k, v)
        scale, final, layout, device, segment = self._options
        if torch.compiler.is_dynamo_compiling():
            inputs = (q, k, v, decay, initial_state, cu_seqlens, erase, erase_key, removed_key)
            return _in_graph(inputs, self._mods, scale, final, layout, device, segment, self._erasing.read_before)
        erasing = dataclasses.replace(self._erasing, erase=erase, erase_key=erase_key, removed_key=removed_key)
        call = check_linear(q, k, v, decay, initial_state, cu_seqlens, layout, erasing)
        own = self.__dict__  # without what modules do where attributes are set
        own["_last"], own["_device"] = _form(call, scale, final, segment), device or call.problem.device_type
        return _execute(call, self._mods, scale, final, layout, device, segment, self._tuning)

    def stages(self) -> dict[str, str]:
        """The program as IR, "traced" and after each pass, for device, dtype and sizes of the last call (at first: f32, 64, decays)."""
        entry = self._entry()
        return stages_of(entry if self._tuning is None else self._tuning.latest(entry, self._device), self._device)

    def ir(self, stage: str = "traced", pretty: bool = False) -> str:
        """The program after one stage of `stages()`, as MLIR or, `pretty`, for people. Raises ArgumentError for an unknown stage."""
        return stage_of(self._entry(), stage, self.stages, pretty)

    def explain(self) -> str:
        """What was derived from the recurrence: the chunked form, its factors, and their check."""
        entry = self._entry()
        return importlib.import_module("attn_mlir.api.describe").explain_traced(entry.traced.located) + slow_of(entry)

    def _entry(self) -> Entry:
        return find(self._mods, self._last, None)[0]


def _first_form(erasing: Erasing) -> DeltaForm:
    """What stands for the inputs of the delta rule until there are some."""
    return ("step" if erasing.given or erasing.read_before else "none", False, False, "decayed" if erasing.read_before else "after")


@graph_part
def linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor | None = None,
    scale: float | None = 1.0,
    q_mod: Function | None = None,
    k_mod: Function | None = None,
    v_mod: Function | None = None,
    decay_mod: Function | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    layout: str = "bhsd",
    device: str | torch.device | None = None,
    segment_size: int | None = None,
    skip_mod: Function | None = None,
    erase: torch.Tensor | None = None,
    erase_mod: Function | None = None,
    erase_key: torch.Tensor | None = None,
    removed_key: torch.Tensor | None = None,
    read_before_update: bool = False,
    **unknown: Never,
) -> Any:
    """Linear attention: o_t = scale q_t . S_t with the state S_t = exp(g_t) S_(t-1) + k_t v_t^T, over all positions t.

    q is [B, Hq, T, K], k is [B, Hk, T, K], v is [B, H, T, V] (with layout="bshd": [B, T, H, D]), in float32, float16, bfloat16 or
    float64, of any strides; Hq and Hk divide H: head h of o reads head h // (H / Hq) of q. o has the shape and dtype of v.
    torch.autocast casts q, k and v, and neither decay nor states.

    decay: the natural logarithm g of the decay, at most 0 for a state that fades: [H], the same at every position; [B, H, T] (bshd:
    [B, T, H]); one for each key channel, that is row of the state: [H, K] or [B, H, T, K] (bshd: [B, T, H, K]). None: 0, no decay.
    scale: what o is multiplied with; None means 1/sqrt(K).
    q_mod, k_mod, v_mod: elementwise changes of q, k, v: f(x), f(x, b, h, t) or f(x, b, h, t, d). decay_mod: that of the log decay, f(g),
    f(g, b, h, t), or f(g, b, h, t, d), which makes a decay for each channel. They are plain Python, traced once; h is the head of o in
    all of them; numbers and tensors that they capture are read anew at every call, and have gradients.
    initial_state: the state before the first position, [B, H, K, V]; None: 0. output_final_state: return (o, final_state), the state
    after the last position. States are float32 (float64 for float64 inputs).
    cu_seqlens: several sequences in one, B = 1: sequence n is the positions from cu_seqlens[n] to cu_seqlens[n + 1], int32 or int64
    [sequences + 1]; states are then [sequences, H, K, V]. In mods, t counts through all of them.
    device: the type of device that the tensors must be on.
    segment_size: for few heads and long sequences: segments of so many positions, a multiple of 512, are computed at the same time, each
    twice, for its final state and from the state before it (state passing in parallel). None: where sizes and device ask for it; 0: never.
    skip_mod: f(b, h, t), the factor with which o_t also gets v_t, as it is before v_mod: a skip connection, not scaled. It captures what
    the other mods may, and does not go with decays of channels.

    The delta rule: with erase or erase_mod the state first loses what it holds for a key,

        S_t = exp(g_t) S_(t-1) - a_t (beta_t a'_t^T exp(g_t) S_(t-1)) + k_t v_t^T

    erase: beta, the share that goes, [H] or [B, H, T] (bshd: [B, T, H]), or one for each channel of a', [H, K] or [B, H, T, K]; None: 1.
    erase_mod: its elementwise change, f(beta), f(beta, b, h, t) or f(beta, b, h, t, d), or what it is, f(b, h, t). erase_key: a', shaped
    as k; None: k after k_mod. removed_key: a, shaped as k; None: k after k_mod. read_before_update: o_t = scale q_t . exp(g_t) S_(t-1).
    The written v is not multiplied by beta: v_mod does that where it is wanted, as DeltaNet does.
    """
    if unknown:
        raise unexpected(linear_attention, unknown)
    check_flags(read_before_update=read_before_update)
    erasing = Erasing(erase, erase_mod, erase_key, removed_key, bool(read_before_update))
    q, k, v = cast(q, k, v)
    mods = (q_mod, k_mod, v_mod, decay_mod, skip_mod, erase_mod)
    check_flags(output_final_state=output_final_state)
    if torch.compiler.is_dynamo_compiling():
        name = None if device is None else str(device)
        inputs = (q, k, v, decay, initial_state, cu_seqlens, *erasing.tensors())
        return _in_graph(inputs, mods, scale, bool(output_final_state), layout, name, segment_size, erasing.read_before)
    segment = check_segment(segment_size)
    call = check_linear(q, k, v, decay, initial_state, cu_seqlens, layout, erasing)
    return _execute(call, mods, scale, bool(output_final_state), layout, device_type(device), segment)


def _in_graph(
    inputs: tuple[Any, ...],
    mods: Mods,
    scale: float | None,
    final: bool,
    layout: str,
    device: str | None,
    segment: int | None,
    read_before: bool,
) -> Any:
    from attn_mlir.api.linear_compiled import linear_in_graph  # with the operators, which take long to register

    return linear_in_graph(inputs, mods, scale, final, layout, device, segment, read_before)


def _form(call: LinearCall, scale: float | None, final: bool, segment: int | None) -> _Form:
    inputs = call.problem.inputs
    factor = scale_form(scale, inputs.head_dim)[0]
    return (
        inputs.element, inputs.head_dim, inputs.value_dim, factor, call.decay_form, call.initial_state is not None, final, call.offsets,
        segment, call.delta.form,
    )  # fmt: skip


def program_of_form(mods: Mods, form: _Form, **further: Any) -> tuple[LinearProgram, Inputs]:
    """What is traced for mods and a form; `further` are other fields of the program."""
    element, key_dim, value_dim, scale, decay, initial, final, offsets, segment, *delta = form
    erasing = (*delta[0], *mods[5:]) if delta else ()
    return LinearProgram(*mods[:5], scale, decay, initial, final, offsets, segment, *erasing, **further), Inputs(
        element, key_dim, value_dim
    )


def find(mods: Mods, form: _Form, device: Any) -> tuple[Entry, Scan]:
    """The traced program of mods for inputs of one form, traced now if it is new."""
    return _CACHE.find(mods, form, lambda: trace_linear(*program_of_form(mods, form), device))


def _execute(
    call: LinearCall,
    mods: Mods,
    scale: float | None,
    final: bool,
    layout: str,
    device: str | None,
    segment: int | None,
    tuning: Tuning | None = None,
) -> Any:
    refuse_jit_trace()
    entry, scan = find(mods, _form(call, scale, final, segment), call.problem.device)
    factor = scale_form(scale, call.problem.inputs.head_dim)[1]
    return run(entry, call, entry.captures(scan, factor), layout, device, tuning)


def run(entry: Entry, call: LinearCall, captures: list[Any], layout: str, device: str | None, tuning: Tuning | None) -> Any:
    """o, or (o, final_state), of a call; the program's own inputs among the captures are filled in."""
    q, k, captures = arguments(entry.traced, call, captures)
    target = call.problem.device_type if device is None else device
    made = Call(entry, call.problem, all_in_order((q, k, call.v, *captures), layout, 3), layout, target)
    if tuning is not None:
        made = made._replace(entry=tuning.entry(made))
    results = dispatch(made)
    return (results[0], results[1]) if entry.traced.outputs else results[0]


def arguments(traced: Traced, call: LinearCall, captures: list[Any]) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
    """q, k and the captures, as the program takes them: with the heads and channels that its mods ask for."""
    given = {"decay": call.decay, "initial_state": call.initial_state, "cu_seqlens": call.cu_seqlens, **call.delta.inputs}
    filled = list(captures)
    for position, name in enumerate(traced.linear or ()):
        value = given[name]
        if name == "decay" and traced.captures[position].rank == 4 and value is not None and value.dim() == 3:
            value = value.unsqueeze(3).expand(*value.shape, call.problem.inputs.head_dim)
        filled[position] = value
    heads = call.problem.sizes["H"]
    q = _with_heads(call.q, heads) if "q" in traced.by_head else call.q
    k = _with_heads(call.k, heads) if "k" in traced.by_head else call.k
    return q, k, filled


def _with_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, h, T, D] as [B, heads, T, D], every head repeated; a view where there is one head."""
    if x.shape[1] == heads:
        return x
    if x.shape[1] == 1:
        return x.expand(-1, heads, -1, -1)
    return x.repeat_interleave(heads // x.shape[1], dim=1)
