"""`attention(q, k, v, ...)` and the compiled object `Attention(...)`: attention of the user's own design."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Never

import torch
from torch.compiler import is_dynamo_compiling

from attn_mlir.api.autocast import cast, may_cast
from attn_mlir.api.call import attend
from attn_mlir.api.dropout import check_p, dropout_of
from attn_mlir.api.eight_bit import NONE, Scales, refuse_eight_bit, refuse_scales, scales_of
from attn_mlir.api.engine_module import EngineModule
from attn_mlir.api.extra_qk import check_count, check_given, flat
from attn_mlir.api.given_masks import Mask, with_function
from attn_mlir.api.graph_parts import graph_part
from attn_mlir.api.inputs import Layout, device_type, layout_of
from attn_mlir.api.makers import dtypes_of_state
from attn_mlir.api.mask_strings import parse
from attn_mlir.api.options import Options, check_splits
from attn_mlir.api.reports import AttentionReport
from attn_mlir.api.rows import softmax
from attn_mlir.api.tuning import tuning_of
from attn_mlir.api.unknown_arguments import unexpected, unexpected_in_call
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.dropout import DropoutForm
from attn_mlir.frontend.given import Inputs

Function = Callable[..., Any]
Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]] | None
_FEW = 16
"""Queries whose keys may be seen in parts."""


class Attention(AttentionReport, EngineModule):
    """Attention with everything but its inputs fixed: `Attention(row=f, mask_mod=g)(q, k, v)`.

    The functions are traced when the object is made, so mistakes in them show at once; kernels are compiled at the
    first call for each dtype and head dimension. The arguments are those of `attention`, and:

    extra_qk: how many additional pairs of q and k each call gives; the call's own extra_qk is the list of them.
    tune: the first call of each kind (with or without gradients, per power of two of the lengths) measures kernels and keeps the
    fastest, on devices whose backend has a tuner. tune_file: where that is kept; what the file holds is used, also without `tune`.

    It is a torch module: copied, pickled and moved as docs/modules.md says. Functions that are modules are submodules, and the parameters
    of ready-made functions are its own. `eval()` sets dropout_p aside.
    """

    _subject = "of_attention"

    def __init__(
        self,
        row: Function = softmax,
        score_mod: Function | None = None,
        mask_mod: Mask = None,
        scale: float | None = None,
        query_mod: Function | None = None,
        key_mod: Function | None = None,
        value_mod: Function | None = None,
        *,
        layout: Layout = "bhsd",
        return_lse: bool = False,
        device: str | torch.device | None = None,
        deterministic: bool = False,
        return_states: bool = False,
        tune: bool = False,
        tune_file: str = "",
        dropout_p: float = 0.0,
        extra_qk: int = 0,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise unexpected(Attention, unknown)
        self._begin(locals())
        if isinstance(mask_mod, str):
            mask_mod = parse(mask_mod)
        self._functions: tuple[Any, ...] = (query_mod, key_mod, value_mod, score_mod, mask_mod, row)
        layout_of(layout)  # tells of an unknown one
        order = layout if isinstance(layout, str) else tuple(layout)
        self._options = Options(self._functions, scale, order, return_lse, return_states, device_type(device), bool(deterministic))
        self.deterministic = bool(deterministic)
        self._tuning = tuning_of((tune, tune_file), (tune, tune_file))
        self.dropout_p = check_p(dropout_p)
        self._extra = check_count(extra_qk)
        self._last, self._device = Inputs("f32", 64, 64, (64,) * self._extra), device_type(device) or "cpu"
        self._form: DropoutForm | None = None
        if dtypes_of_state() is None:
            self._traced()
        self._end()

    @graph_part
    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        dropout_p: float | None = None,
        dropout_seed: Any = None,
        extra_qk: Pairs = None,
        key_index: torch.Tensor | None = None,
        key_block: tuple[int, int] | None = None,
        q_descale: torch.Tensor | float | None = None,
        k_descale: torch.Tensor | float | None = None,
        v_descale: torch.Tensor | float | None = None,
        o_scale: torch.Tensor | float | None = None,
        out_dtype: torch.dtype | None = None,
        **unknown: Never,
    ) -> Any:
        """The output, shaped as q with v's head dimension; with it lse and row states where asked for.

        dropout_p: that of this call, in place of the object's. dropout_seed, extra_qk, key_index, key_block, and what is said of
        8-bit numbers, q_descale to out_dtype: see `attention`.
        """
        if unknown:
            raise unexpected_in_call(Attention, self.forward, unknown)
        if self._captured and (current := self.current()) is not self:
            further = {"dropout_seed": dropout_seed, "extra_qk": extra_qk, "key_index": key_index, "key_block": key_block}
            further |= dict(zip(Scales._fields, (q_descale, k_descale, v_descale, o_scale, out_dtype), strict=True))
            return current.forward(q, k, v, dropout_p=dropout_p, **further)
        scales = scales_of(q_descale, k_descale, v_descale, o_scale, out_dtype)
        if dropout_p is None:
            dropout_p = self.dropout_p if self.training else 0.0
        extra: Sequence[torch.Tensor] = ()
        if extra_qk is not None or may_cast():
            q, k, v, *extra = cast(q, k, v, *flat(extra_qk))
        if len(extra) != 2 * self._extra:
            check_given(len(extra) // 2, self._extra)
        options = self._options
        if options.deterministic != self.deterministic:  # which may be set
            options = options._replace(deterministic=self.deterministic)
        if is_dynamo_compiling():
            refuse_eight_bit((q, k, v), "torch.compile")
            refuse_scales(scales, "torch.compile")
            from attn_mlir.api.compiled import attention_in_graph

            return attention_in_graph((q, k, v), options, (dropout_p, dropout_seed), extra, lists=(key_index, key_block))
        dropout = dropout_of(dropout_p, dropout_seed, q)
        if key_index is not None or key_block is not None:
            refuse_scales(scales, "key_index")
            listed = importlib.import_module("attn_mlir.api.key_lists").attention_listed
            return listed((q, k, v), options, dropout, extra, (key_index, key_block))
        result, call = attend((q, k, v), options, dropout, extra, scales, tuning=self._tuning)
        own = self.__dict__  # without what modules do where attributes are set
        own["_last"], own["_device"], own["_form"] = call.problem.inputs, call.device, dropout.form
        return result

    def explain(self) -> str:
        """What was derived from the row: how each reduction is carried, the rules for merging and finalizing, and their check."""
        entry = self._traced()
        return importlib.import_module("attn_mlir.api.describe").explain_entry(entry, entry.traced.text)

    def _traced(self) -> Entry:
        return self._entry(self._last)[0]

    def _entry(self, inputs: Inputs) -> tuple[Entry, Scan]:
        return self._options._replace(functions=with_function(self._functions)).find(inputs, None, self._form)[:2]


def _has_few(q: Any, layout: Any) -> bool:
    """Whether q has so few queries that keys may be seen in parts; False for what is no input, and for any number (`torch.export`)."""
    order = layout[0] if isinstance(layout, (tuple, list)) and layout else layout
    if not isinstance(q, torch.Tensor) or q.dim() != 4:
        return False
    queries: Any = q.shape[str(order).find("s")]
    return type(queries) is int and queries <= _FEW


@graph_part
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    row: Function = softmax,
    score_mod: Function | None = None,
    mask_mod: Mask = None,
    scale: float | None = None,
    *,
    query_mod: Function | None = None,
    key_mod: Function | None = None,
    value_mod: Function | None = None,
    layout: Layout = "bhsd",
    return_lse: bool = False,
    device: str | torch.device | None = None,
    deterministic: bool = False,
    return_states: bool = False,
    dropout_p: float = 0.0,
    dropout_seed: Any = None,
    extra_qk: Pairs = None,
    return_partial: bool = False,
    q_offset: int = 0,
    kv_offset: int = 0,
    q_len: int | None = None,
    kv_len: int | None = None,
    num_splits: int = 0,
    key_index: torch.Tensor | None = None,
    key_block: tuple[int, int] | None = None,
    q_descale: torch.Tensor | float | None = None,
    k_descale: torch.Tensor | float | None = None,
    v_descale: torch.Tensor | float | None = None,
    o_scale: torch.Tensor | float | None = None,
    out_dtype: torch.dtype | None = None,
    **unknown: Never,
) -> Any:
    """Attention: o_i = sum_j p_ij v_j with p_i = row(score_mod(scale * q_i . k_j)) over the keys that mask_mod keeps.

    q is [B, Hq, Sq, D], k is [B, Hkv, Skv, D], v is [B, Hkv, Skv, Dv], in float32, float16, bfloat16 or float64; query head h
    reads key head h // (Hq / Hkv). Jagged nested tensors, [B, H, jagged, D], are sequences of different lengths, see `attention_varlen`;
    o is one, too. The functions are plain Python, traced once; numbers and tensors that they capture are read
    at every call. torch.autocast casts q, k and v as it does those of torch's scaled_dot_product_attention, and nothing that is captured.

    layout: "bhsd"; "bshd" where q, k, v and o are [B, S, H, D]; "sbhd" where they are [S, B, H, D]; or two of them, ("bhsd", "bshd"),
    the first for q, k and v, the second for o. Results are contiguous in that order, gradients in that of their inputs. Inputs may
    have any strides, as `q, k, v = qkv.unbind(2)` of a packed tensor has them; docs/layouts.md tells which ones are copied.

    row: row(s), row(s, b, h, q_idx) or row(s, b, h, q_idx, kv_idx), from one row of scores to its weights; or to
    (weights, {"name": row state}). kv_idx is a row, too: the position of each key. Further weights have an o of their own, of the same v:
    `return p, p2` or `return p, p2, {"name": row state}`, and in the place of o there is a tuple of as many.
    score_mod: score_mod(score, b, h, q_idx, kv_idx), the changed score. mask_mod: mask_mod(b, h, q_idx, kv_idx), true
    where a key is present; or a BlockMask, whose mask_mod is taken; or a string such as "t:128,0", see `masks.parse`.
    scale: what scores are multiplied with first; None means 1/sqrt(D).
    query_mod, key_mod, value_mod: elementwise changes of q, k, v: f(x) or f(x, b, h, idx, d).
    return_lse: also return the natural logarithm of the sum of exp(score), [B, Hq, Sq], or the row's own "lse".
    return_states: also return a dictionary of the row's states, each [B, Hq, Sq].
    device: the type of device that the tensors must be on. deterministic: gradients have the same bits in every run, as they have on a
    CPU, and results everywhere; on a GPU this takes more time. `torch.use_deterministic_algorithms(True)` asks for it, too.
    dropout_p: the probability with which a weight becomes 0; the others are divided by 1 - dropout_p. lse and row states are those without
    dropout. dropout_seed: (seed, offset), integers or int64 tensors that are read when a kernel runs; None: drawn by torch's generator of
    the device. `dropout_mask` tells what is kept.
    extra_qk: additional pairs [(q2, k2), ...], each with a product q2_i . k2_j that is one more score: row(s, s2) takes both, and a
    score_mod(score, score2, b, h, q_idx, kv_idx) gives one score or a tuple of them; a score_mod of one score changes each. q2 is
    [B, Hq, Sq, D2], k2 [B, Hkv, Skv, D2], of q's dtype and in q's layout; `scale` holds for each, None means 1/sqrt(D2).
    query_mod and key_mod change q and k alone, and the default lse is that of the first score.
    return_partial: give a `Partial` in place of o, which `merge` merges with those of other keys. q_offset, kv_offset: where the given
    queries and keys begin in the whole sequence, as functions see it; q_len, kv_len: how long it is, for q_len() and kv_len(), up to the
    end of the given part where they are left out. Only partial results have positions of their own.
    num_splits: how many parts the keys of up to 16 queries are seen in, on several threads, where nothing needs a gradient. 0: chosen by
    the number of keys; 1: one part.
    key_index, key_block: lists of keys. With key_block = (bq, bk), query block i, of bq queries, of head h sees the blocks of bk keys whose
    numbers key_index[b, h, i] has, an int32 tensor [B, 1 or Hkv or Hq, ceil(Sq / bq), n]; -1 is no block, and one that is there twice
    counts once. To functions kv_idx is the position in k, and other keys are as masked. See docs/key-lists.md.
    q_descale, k_descale, v_descale: what the numbers of q, k and v are multiplied by, where these are of torch.float8_e4m3fn, e5m2 or their
    fnuz forms, or k and v alone: numbers, or float32 tensors of shape [], [Hkv] or [B, Hkv], q's also [Hq] or [B, Hq]. o_scale: the
    same of o, before it is rounded. out_dtype: the dtype of o, None: bfloat16, or q's where that is wider. No gradients. See docs/fp8.md.
    """
    if unknown:
        raise unexpected(attention, unknown)
    if isinstance(mask_mod, str):
        mask_mod = parse(mask_mod)
    functions = (query_mod, key_mod, value_mod, score_mod, mask_mod, row)
    scales = scales_of(q_descale, k_descale, v_descale, o_scale, out_dtype)
    nested = getattr(q, "is_nested", False)
    if return_partial or key_index is not None or nested:
        refuse_scales(scales, "key_index" if key_index is not None else "return_partial" if return_partial else "a nested tensor")
    if key_index is not None and (return_partial or nested or num_splits):
        raise UnsupportedError("key_index is for whole results of tensors that are not nested, without num_splits")
    if key_index is None and key_block is not None:
        raise ArgumentError("key_block is for key_index, which says which blocks each block of queries sees: pass both")
    if num_splits and (return_partial or nested):
        raise UnsupportedError("num_splits is for whole results of tensors that are not nested: leave it out")
    if return_partial:
        refuse_eight_bit((q, k, v), "return_partial")
        options = Options(functions, scale, layout, return_lse, return_states, device, deterministic)
        places = (q_offset, kv_offset, q_len, kv_len)
        return importlib.import_module("attn_mlir.api.partial").of_attention((q, k, v), options, places, (dropout_p, extra_qk))
    if q_len is not None or kv_len is not None or q_offset != 0 or kv_offset != 0:
        raise ArgumentError("q_offset, kv_offset, q_len and kv_len are for partial results: pass return_partial=True, and finalize it")
    if nested and q.layout == torch.jagged:
        mods = dict(zip(("query_mod", "key_mod", "value_mod", "score_mod", "mask_mod", "row"), functions, strict=True))
        results = {"return_lse": return_lse, "return_states": return_states, "dropout_p": dropout_p, "dropout_seed": dropout_seed}
        asked = {**mods, **results, "scale": scale, "device": device, "deterministic": deterministic}
        return importlib.import_module("attn_mlir.api.nested").attention_nested(q, k, v, layout, extra_qk, **asked)
    extra: Sequence[torch.Tensor] = ()
    if extra_qk is not None or may_cast():
        q, k, v, *extra = cast(q, k, v, *flat(extra_qk))
    if is_dynamo_compiling():
        refuse_eight_bit((q, k, v), "torch.compile")
        refuse_scales(scales, "torch.compile")
        if num_splits:
            raise UnsupportedError("num_splits is chosen inside of torch.compile: leave it out there")
        from attn_mlir.api.compiled import attention_in_graph  # with the operators, which take long to register

        asked = (functions, scale, layout, return_lse, return_states, device, bool(deterministic))
        return attention_in_graph((q, k, v), asked, (dropout_p, dropout_seed), extra, lists=(key_index, key_block))
    dropout = dropout_of(dropout_p, dropout_seed, q)
    splits = check_splits(num_splits) if num_splits else 0
    options = Options(functions, scale, layout, return_lse, return_states, device, bool(deterministic), splits)
    if key_index is not None:
        listed = importlib.import_module("attn_mlir.api.key_lists").attention_listed
        return listed((q, k, v), options, dropout, extra, (key_index, key_block))
    if (
        scales is NONE
        and not nested
        and (device is not None or getattr(q, "is_cuda", False))
        and _has_few(q, layout)
        and not extra
        and dropout.form is None
    ):
        found = importlib.import_module("attn_mlir.api.long_caches").of_long_caches((q, k, v), options)
        if found is not None:
            return found[0]
    return attend((q, k, v), options, dropout, extra, scales)[0]
