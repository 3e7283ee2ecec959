"""What other attention functions call their arguments, and how to say the same here."""

from collections.abc import Iterable

_MASK = "a mask that keeps or drops keys is a function: mask_mod=lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]"
_HINTS = {
    "is_causal": "pass mask_mod=attn_mlir.masks.causal()",
    "causal": "pass mask_mod=attn_mlir.masks.causal()",
    "attn_mask": f"{_MASK}; one that is added belongs into score_mod",
    "attn_bias": "add it in score_mod: lambda score, b, h, q_idx, kv_idx: score + bias[b, h, q_idx, kv_idx]",
    "key_padding_mask": "pass mask_mod=lambda b, h, q_idx, kv_idx: mask[b, kv_idx]",
    "mask": _MASK,
    "dropout_p": "only `attention` and engines of attention have dropout: leave it out",
    "dropout": "pass dropout_p=, and dropout_seed=(seed, offset) to have the same again",
    "training": "pass dropout_p=0.0 outside of training",
    "philox_seed": "pass dropout_seed=(seed, offset)",
    "rng_state": "pass dropout_seed=(seed, offset)",
    "enable_gqa": "leave it out: q may have a multiple of the heads of k and v",
    "block_mask": "pass its function: mask_mod=block_mask.mask_mod; which blocks are skipped is derived from it",
    "kernel_options": "leave it out: kernels are chosen by the compiler, or tuned by attn_mlir.Attention(tune=True)",
    "return_aux": "use return_lse=True or return_states=True",
    "need_weights": "weights are never stored; return_lse=True gives what they are normalised with",
    "query": "pass q, k and v by position",
    "key": "pass q, k and v by position",
    "value": "pass q, k and v by position",
    "softmax_scale": "pass scale=",
    "sm_scale": "pass scale=",
    "window_size": "pass mask_mod=attn_mlir.masks.sliding_window(left, right)",
    "alibi_slopes": "pass score_mod=attn_mlir.mods.alibi(slopes)",
    "softcap": "pass score_mod=attn_mlir.mods.softcap(cap)",
    "cu_seqlens": "put all sequences into one and pass mask_mod=attn_mlir.masks.document(...)",
    "tune": "use the object: attn_mlir.Attention(..., tune=True)(q, k, v)",
    "tune_file": "use the object: attn_mlir.Attention(..., tune_file=...)(q, k, v)",
}


def unexpected(function: str, names: Iterable[str]) -> TypeError:
    """The error for keyword arguments that `function` does not take."""
    name = next(iter(names))
    hint = _HINTS.get(name, "")
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}" + (f": {hint}" if hint else ""))
