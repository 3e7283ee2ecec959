"""`linear_attention`, its step `linear_attention_step` and the compiled object `LinearAttention`: recurrences of the user's own design."""

from collections.abc import Callable
from typing import Any, Never

import torch

from attn_mlir.api.autocast import cast
from attn_mlir.api.call import attend_linear
from attn_mlir.api.engine_module import EngineModule
from attn_mlir.api.graph_parts import graph_part
from attn_mlir.api.inputs import device_type
from attn_mlir.api.linear_inputs import ORDERS, check_flags, check_segment, described
from attn_mlir.api.makers import dtypes_of_state
from attn_mlir.api.options import LinearOptions, Mods, RecurrenceForm
from attn_mlir.api.reports import LinearReport
from attn_mlir.api.tuning import tuning_of
from attn_mlir.api.unknown_arguments import unexpected, unexpected_in_call
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.entry import Entry

Function = Callable[..., Any]


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
        *,
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
        asked = (scale, bool(output_final_state), layout, device_type(device), check_segment(segment_size))
        self._options = LinearOptions(*asked, self._mods, bool(read_before_update))
        self._device = self._options.device or "cpu"
        self._tuning = tuning_of((bool(tune), tune_file), (bool(tune), tune_file))
        self._last: RecurrenceForm = self._options.first_form()
        if dtypes_of_state() is None:
            self._traced()
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
        *,
        erase: Any = None,
        erase_key: Any = None,
        removed_key: Any = None,
        **unknown: Never,
    ) -> Any:
        """o, shaped as v; with output_final_state=True also the final state. See `linear_attention`."""
        if unknown:
            raise unexpected_in_call(LinearAttention, self.forward, unknown)
        if self._captured and (current := self.current()) is not self:
            erased = {"erase": erase, "erase_key": erase_key, "removed_key": removed_key}
            return current.forward(q, k, v, decay, initial_state, cu_seqlens, **erased)
        inputs = (*cast(q, k, v), decay, initial_state, cu_seqlens, erase, erase_key, removed_key)
        if torch.compiler.is_dynamo_compiling():
            return _in_graph(inputs, self._options)
        own = self.__dict__  # without what modules do where attributes are set
        result, own["_last"], own["_device"] = attend_linear(inputs, self._options, self._tuning)
        return result

    def _traced(self) -> Entry:
        return self._last.find(self._mods, None)[0]


@graph_part
def linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor | None = None,
    scale: float | None = 1.0,
    *,
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
    all of them; numbers and tensors that they capture are read at every call, and have gradients.
    initial_state: the state before the first position, [B, H, K, V]; None: 0. output_final_state: return (o, final_state), the state
    after the last position. States are float32 (float64 for float64 inputs).
    cu_seqlens: several sequences in one, B = 1: sequence n is the positions from cu_seqlens[n] to cu_seqlens[n + 1], int32 or int64
    [sequences + 1]; states are then [sequences, H, K, V]. In mods, t counts through all of them.
    device: the type of device that the tensors must be on.
    segment_size: for few heads and long sequences: segments of so many positions, a multiple of 512, are computed at the same time, each
    twice, for its final state and from the state before it (state passing in parallel), with erase three times, for the matrix by which
    it multiplies the state, too. None: where sizes and device ask for it, with erase on Hopper alone, and where nothing needs a
    gradient; 0: never.
    skip_mod: f(b, h, t), the factor with which o_t also gets v_t, as it is before v_mod: a skip connection, not scaled. It captures what
    the other mods may, and does not go with decays of channels or with erase.

    The delta rule: with erase or erase_mod the state first loses what it holds for a key,

        S_t = exp(g_t) S_(t-1) - a_t (beta_t a'_t^T exp(g_t) S_(t-1)) + k_t v_t^T

    erase: beta, the share that goes, [H] or [B, H, T] (bshd: [B, T, H]), or one for each channel of a', [H, K] or [B, H, T, K]; None: 1.
    erase_mod: its elementwise change, f(beta), f(beta, b, h, t) or f(beta, b, h, t, d), or what it is, f(b, h, t). erase_key: a', shaped
    as k; None: k after k_mod. removed_key: a, shaped as k; None: k after k_mod. read_before_update: o_t = scale q_t . exp(g_t) S_(t-1).
    The written v is not multiplied by beta: v_mod does that where it is wanted, as DeltaNet does.
    """
    if unknown:
        raise unexpected(linear_attention, unknown)
    check_flags(output_final_state=output_final_state, read_before_update=read_before_update)
    inputs = (*cast(q, k, v), decay, initial_state, cu_seqlens, erase, erase_key, removed_key)
    mods = (q_mod, k_mod, v_mod, decay_mod, skip_mod, erase_mod)
    asked = (scale, bool(output_final_state), layout, device, segment_size, mods, bool(read_before_update))
    if torch.compiler.is_dynamo_compiling():
        return _in_graph(inputs, asked)  # a named tuple would have the graph compiled again for each number that mods hold
    check_segment(segment_size)
    return attend_linear(inputs, LinearOptions(*asked)._replace(device=device_type(device)))[0]


def _in_graph(inputs: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    from attn_mlir.api.compiled import linear_in_graph  # with the operators, which take long to register

    return linear_in_graph(inputs, options)


def linear_attention_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    scale: float | None = 1.0,
    *,
    q_mod: Function | None = None,
    k_mod: Function | None = None,
    v_mod: Function | None = None,
    decay_mod: Function | None = None,
    layout: str = "bhsd",
    device: str | torch.device | None = None,
    skip_mod: Function | None = None,
    erase: torch.Tensor | None = None,
    erase_mod: Function | None = None,
    erase_key: torch.Tensor | None = None,
    removed_key: torch.Tensor | None = None,
    read_before_update: bool = False,
    **unknown: Never,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, state): the next position of `linear_attention` from the state before it, and the state after it.

    q is [B, Hq, K] or [B, Hq, 1, K], k and v alike (with layout="bshd": [B, 1, H, D]); o has the form of v. decay is [H], one for each
    step, [B, H], or [B, H, K]; with positions in q also in it, [B, H, 1] or [B, H, 1, K]. A decay [H, K] must be given with positions in
    q; erase alike. erase_key and removed_key have the form of k. state is [B, H, K, V]; None: 0. The other arguments are those of
    `linear_attention`; in mods, t is 0.
    """
    if unknown:
        raise unexpected(linear_attention_step, unknown)
    flat = isinstance(q, torch.Tensor) and q.dim() == 3
    axis = 1 if layout == "bshd" else 2
    if flat:
        for name, tensor in (("k", k), ("v", v)):
            if not isinstance(tensor, torch.Tensor) or tensor.dim() != 3:
                raise ArgumentError(f"q is [B, H, K], so that {name} must have 3 dimensions, too, got {described(tensor)}")
        q, k, v = q.unsqueeze(axis), k.unsqueeze(axis), v.unsqueeze(axis)
        if isinstance(decay, torch.Tensor) and decay.dim() > 1:
            if decay.dim() > 3 or decay.shape[:2] != (v.shape[0], v.shape[3 - axis]):
                raise ArgumentError(
                    f"q is [B, H, K], so that decay must be [H], [B, H] or [B, H, K], got {described(decay)}; [H, K] needs q with positions"
                )
            decay = decay.unsqueeze(axis)
        erase, erase_key, removed_key = (
            x.unsqueeze(axis) if isinstance(x, torch.Tensor) and x.dim() in dims else x
            for x, dims in ((erase, (2, 3)), (erase_key, (3,)), (removed_key, (3,)))
        )
    elif isinstance(q, torch.Tensor) and q.dim() != 4:
        whole = "[B, 1, H, K]" if layout == "bshd" else "[B, H, 1, K]"
        raise ArgumentError(f"q must be [B, H, K], or {whole} with a position, got {described(q)}")
    elif isinstance(q, torch.Tensor) and q.shape[axis] != 1:
        raise ArgumentError(f"a step takes one position, but q has {q.shape[axis]}: linear_attention takes many")
    if isinstance(state, torch.Tensor) and isinstance(v, torch.Tensor) and v.dim() == 4:
        wanted = [q.shape[0], v.shape[3 - axis], q.shape[3], v.shape[3]]
        if list(state.shape) != wanted:
            raise ArgumentError(f"state has shape {list(state.shape)}, but [B, H, K, V] is {wanted} in this call")
    o, state = linear_attention(
        q, k, v, decay, scale, q_mod=q_mod, k_mod=k_mod, v_mod=v_mod, decay_mod=decay_mod, skip_mod=skip_mod, initial_state=state,
        output_final_state=True, layout=layout, device=device, erase=erase, erase_mod=erase_mod, erase_key=erase_key,
        removed_key=removed_key, read_before_update=read_before_update,
    )  # fmt: skip
    return (o.squeeze(axis) if flat else o), state  # type: ignore[return-value]
