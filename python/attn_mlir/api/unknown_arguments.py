"""What other attention functions call their arguments, and how to say the same here."""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import attn_mlir

_MASK = "a mask that keeps or drops keys is a function: mask_mod=lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]"
_VARLEN = "packed sequences have a function of their own: attn_mlir.attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k)"
_HINTS = {
    **dict.fromkeys(("is_causal", "causal"), "pass mask_mod=attn_mlir.masks.causal()"),
    **dict.fromkeys(("attn_mask", "attention_mask"), f"{_MASK}; one that is added is score_mod=attn_mlir.mods.bias(mask)"),
    "attn_bias": "pass score_mod=attn_mlir.mods.bias(bias)",
    "bias": "pass score_mod=attn_mlir.mods.bias(bias)",
    "key_padding_mask": "pass mask_mod=lambda b, h, q_idx, kv_idx: mask[b, kv_idx]",
    "mask": _MASK,
    "dropout_p": "only `attention` and engines of attention have dropout: leave it out",
    "dropout": "pass dropout_p=, and dropout_seed=(seed, offset) to have the same again",
    "dropout_seed": "the seed is one of a call: pass it there",
    "training": "pass dropout_p=0.0 outside of training, or use attn_mlir.Attention, which .eval() tells",
    **dict.fromkeys(("philox_seed", "rng_state"), "pass dropout_seed=(seed, offset)"),
    "enable_gqa": "leave it out: q may have a multiple of the heads of k and v",
    "block_mask": "pass its function: mask_mod=block_mask.mask_mod; which blocks are skipped is derived from it",
    "kernel_options": "leave it out: kernels are chosen by the compiler, or tuned by attn_mlir.Attention(tune=True)",
    "return_aux": "use return_lse=True or return_states=True",
    **dict.fromkeys(("return_attn_probs", "need_weights"), "weights are never stored; return_lse=True gives what they are normalised with"),
    "return_softmax_lse": "pass return_lse=True",
    **dict.fromkeys(("query", "key", "value"), "pass q, k and v by position"),
    **dict.fromkeys(("softmax_scale", "sm_scale"), "pass scale="),
    "window_size": "pass mask_mod=attn_mlir.masks.sliding_window(left, right)",
    "alibi_slopes": "pass score_mod=attn_mlir.mods.alibi(slopes)",
    **dict.fromkeys(("softcap", "logits_soft_cap"), "pass score_mod=attn_mlir.mods.softcap(cap)"),
    **dict.fromkeys(("sinks", "s_aux"), "pass row=attn_mlir.rows.softmax_sink(sinks)"),
    **dict.fromkeys(("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "cu_seq_q", "cu_seq_k"), _VARLEN),
    **dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), "attn_mlir.attention_varlen calls them max_q and max_k"),
    "tune": "use the object: attn_mlir.Attention(..., tune=True)(q, k, v)",
    "tune_file": "use the object: attn_mlir.Attention(..., tune_file=...)(q, k, v)",
}
_OF_LINEAR = "linear attention has no scores of pairs"
_LINEAR = {
    **dict.fromkeys(("is_causal", "causal"), "leave it out: linear attention always is causal"),
    **dict.fromkeys(("attn_mask", "attention_mask", "mask", "mask_mod"), f"{_OF_LINEAR} to mask: a v_mod that gives 0 leaves out a key"),
    **dict.fromkeys(("attn_bias", "bias", "score_mod", "row"), f"{_OF_LINEAR}: only attn_mlir.attention changes them"),
    "query_mod": "it is called q_mod here",
    "key_mod": "it is called k_mod here",
    "value_mod": "it is called v_mod here",
    "g": "the log decay is the argument decay",
    "head_first": 'pass layout="bhsd" or "bshd"',
    "chunk_size": "leave it out: chunks are chosen by the compiler",
    **dict.fromkeys(("softmax_scale", "sm_scale"), "pass scale="),
    "dropout_p": _HINTS["dropout_p"],
    "enable_gqa": "leave it out: q and k may have fewer heads than v",
    "tune": "use the object: attn_mlir.LinearAttention(..., tune=True)(q, k, v)",
    "tune_file": "use the object: attn_mlir.LinearAttention(..., tune_file=...)(q, k, v)",
}
_ENGINE = "an engine has no scale but what its functions do: multiply in"
_OTHERS = {
    "AttentionEngine": _HINTS | dict.fromkeys(("scale", "softmax_scale", "sm_scale"), f"{_ENGINE} score_mod"),
    "LinearAttentionEngine": _LINEAR
    | dict.fromkeys(("scale", "softmax_scale", "sm_scale"), f"{_ENGINE} q_mod")
    | {"custom_fwd_inputs": "it is called custom_io here", "tune_file": "it is called tune_filename here"},
    **dict.fromkeys(("LinearAttention", "linear_attention", "linear_attention_step"), _LINEAR),
}
_ALIKE = 0.7


def unexpected(function: Callable[..., Any], names: Iterable[str]) -> TypeError:
    """The error for keyword arguments that a function, or the constructor of a class, does not take."""
    return _error(f"{function.__name__}()", function.__name__, "", next(iter(names)))


def unexpected_in_call(kind: type, method: Callable[..., Any], names: Iterable[str]) -> TypeError:
    """The same for a call of an object of the class `kind`, which `method` answers: most arguments are those of the constructor."""
    return _error(f"a call of {kind.__name__}", kind.__name__, method.__name__, next(iter(names)))


def _error(called: str, owner: str, method: str, name: str) -> TypeError:
    advice = advice_on(owner, method, name)
    return TypeError(f"{called} got an unexpected keyword argument '{name}'" + (f": {advice}" if advice else ""))


def advice_on(owner: str, method: str, name: str) -> str:
    """What to write in place of the argument `name` of a function or class of attn_mlir, or of a method where that is not empty."""
    taking, hints = getattr(attn_mlir, owner), _OTHERS.get(owner, _HINTS)
    if not method:
        return _hint(name, hints, _parameters(taking))
    if name in _parameters(taking):
        return f"it is an argument of {owner}(...), which is made once"
    hint = _hint(name, hints, _parameters(getattr(taking, method)))
    return f"to {owner}(...), {hint}" if hint.startswith("pass ") else hint


# As torch._dynamo.assume_constant_result does, which takes long to import: dynamo calls it, and does not look inside.
advice_on._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _parameters(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _hint(name: str, hints: dict[str, str], own: list[str]) -> str:
    """What to write in place of the argument: by its name, or by one that is spelled alike; empty where nothing is known."""
    if name in hints:
        return hints[name]
    close = difflib.get_close_matches(name.lower(), [*own, *hints], 1, _ALIKE)
    if not close:
        return ""
    return f"did you mean {close[0]!r}?" + ("" if close[0] in own else f" Here, {hints[close[0]]}")
