"""attn_mlir as the attention of Hugging Face transformers' models.

from attn_mlir.integrations.transformers import register
model = AutoModel.from_pretrained(path, attn_implementation=register())
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.api.attention import attention
from attn_mlir.api.linear_inputs import check_flags
from attn_mlir.api.masks import Mask, and_, causal, parse
from attn_mlir.api.mods import ScoreMod, additive_bias
from attn_mlir.api.mods import softcap as softcap_mod
from attn_mlir.api.rows import softmax, softmax_sink
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.elementary import exp, maximum
from attn_mlir.integrations import model_caches
from attn_mlir.integrations.model_masks import ModelMask, dense, given_mask, known_pattern
from attn_mlir.integrations.model_scans import replace_scans, restore_scans

_INSTALL = "install what is needed with: pip install 'attn-mlir[examples]'"
_RESERVED = ("eager", "sdpa", "flex_attention")
_ARGUMENTS = frozenset(
    {
        *("module", "query", "key", "value", "attention_mask", "scaling", "dropout", "is_causal", "softcap", "s_aux", "sinks"),
        *("position_bias", "sliding_window", "output_attentions", "cache", "kwargs"),
    }
)
"""What eager attentions are given that is either computed with here or, as windows are, said by the mask, too."""


def register(
    name: str = "attn_mlir",
    row: Callable[..., Any] = softmax,
    score_mod: ScoreMod | None = None,
    mask_mod: Mask | str | None = None,
    linear: bool = False,
    continuous: bool = False,
) -> str:
    """Registers an attention with transformers under `name`, which is returned: use it as `attn_implementation`.

    row, score_mod, mask_mod: as in `attn_mlir.attention`. They come on top of what the model asks for: its scale,
    softcap, biases, sinks, causal or window masks, grouped heads, and padding. A padding key is absent, so rows that
    are not softmax honour it, too. Models keep their weights; register several names to compare several attentions.

    The dropout of attention that a model is configured with is `dropout_p`: drawn by torch's generator, and off after model.eval().

    linear: Mamba-2's layers (of Mamba2, Bamba, FalconH1, Nemotron-H, Zamba2, ...) run on `attn_mlir.mamba2`, too, and take packed
    sequences as `seq_idx` or `cu_seqlens`; delta rules (of Qwen3-Next, Qwen3.5, OLMo-hybrid, Kimi Linear, ...) on `gated_delta_rule` and
    `kda`, on CPUs, steps of decoding included. transformers has one function for all models and no name for it, so this holds for all
    models of the process, imported before or later, whatever their attention, until `restore_linear()`. Mamba-2's steps of decoding
    remain theirs.

    continuous: continuous batching (`model.generate_batch`), too, of all models of the process that use "paged|eager", which transformers
    asks for by that name only: call `model.set_attn_implementation("paged|eager")`. Requests are then sequences of `attention_varlen`,
    until `restore_continuous()`.

    Raises UnsupportedError where transformers is not installed or too old, and for `linear` where its package `kernels` is in use.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name) or name in _RESERVED or "flash" in name:
        raise ArgumentError(f"name must be an identifier that transformers does not use itself (such as 'attn_mlir'), got {name!r}")
    if isinstance(mask_mod, str):
        mask_mod = parse(mask_mod)
    for argument, function in (("row", row), ("score_mod", score_mod), ("mask_mod", mask_mod)):
        if not callable(function) and (function is not None or argument == "row"):
            raise ArgumentError(f"{argument} must be a function, got {type(function).__name__}")
    check_flags(linear=linear, continuous=continuous)
    attentions, masks, masking = _interfaces()
    if linear:
        replace_scans()
    attentions.register(name, attention_function(row, score_mod, mask_mod))
    if continuous:
        model_caches.replace(attentions, attention_function(row, score_mod, mask_mod))
    masks.register(name, mask_function(masking.sdpa_mask, masking.causal_mask_function))
    return name


def restore_linear() -> None:
    """Undoes `linear=True` of `register`: the layers of all models compute as they did before. Nothing happens where it was not used."""
    restore_scans()


def restore_continuous() -> None:
    """Undoes `continuous=True` of `register`: "paged|eager" is transformers' own again. Nothing happens where it was not used."""
    model_caches.restore(_interfaces()[0])


def _interfaces() -> tuple[Any, Any, Any]:
    try:
        import transformers
        from transformers import masking_utils
    except ImportError as error:
        raise UnsupportedError(f"transformers cannot be imported ({error}): {_INSTALL}") from error
    if "q_offset" not in inspect.signature(masking_utils.sdpa_mask).parameters:
        raise UnsupportedError(f"transformers {transformers.__version__} is too old for attn_mlir: {_INSTALL} --upgrade")
    return transformers.AttentionInterface, transformers.AttentionMaskInterface, masking_utils


def mask_function(dense_mask: Callable[..., Any], causal_mask: Callable[..., Any]) -> Callable[..., ModelMask]:
    """What transformers calls once a forward pass to make the `attention_mask` of all layers.

    `dense_mask` makes the mask as a tensor where a function cannot be traced, `causal_mask` is the function where none is given.
    """

    def model_mask(
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: Any = 0,
        kv_offset: Any = 0,
        mask_function: Callable[..., Any] = causal_mask,
        attention_mask: torch.Tensor | ModelMask | None = None,
        **options: Any,
    ) -> ModelMask:
        if isinstance(attention_mask, ModelMask):  # generate() made it, for a static cache
            return attention_mask

        def evaluate() -> torch.Tensor:
            whole = {**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
            return dense_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **whole)

        if torch.compiler.is_compiling():  # dynamo follows all functions of index arithmetic, and values cannot be asked for
            present = None if attention_mask is None else _as_long_as(attention_mask.bool(), kv_length + kv_offset)
            return ModelMask(mask_function, present, q_offset, kv_offset, evaluate, kv_length)
        known, pattern = known_pattern(mask_function)
        if not known:
            return ModelMask(dense(evaluate()), evaluate=evaluate)
        present = None
        if attention_mask is not None:
            missing = int(kv_length) + int(kv_offset) > attention_mask.shape[-1]
            if missing or not bool(attention_mask.all()):
                present = _as_long_as(attention_mask.bool(), int(kv_length) + int(kv_offset))
        return ModelMask(pattern, present, int(q_offset), int(kv_offset), evaluate, int(kv_length))

    return model_mask


def _as_long_as(present: torch.Tensor, keys: int) -> torch.Tensor:
    """[B, S] with at least `keys` positions; further ones are absent."""
    missing = keys - present.shape[-1]
    return torch.nn.functional.pad(present, (0, missing)) if missing > 0 else present


def attention_function(row: Callable[..., Any], score_mod: ScoreMod | None, mask_mod: Mask | None) -> Callable[..., Any]:
    """What transformers calls for the attention of each layer."""

    def attn_mlir_attention(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any,
        scaling: float | None = None,
        dropout: float = 0.0,
        *,
        is_causal: bool | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """query, key and value are [B, H, S, D]; gives the output as [B, Sq, Hq, Dv], and None for the weights."""
        _check(module, options)
        scores: list[ScoreMod | None] = [] if softcap is None else [softcap_mod(softcap)]
        if position_bias is not None:
            scores.append(additive_bias(position_bias))
        masks = []
        weights = row if s_aux is None and sinks is None else _with_sink(row, s_aux, sinks)
        if model_caches.is_continuous(options):
            if dropout:
                raise UnsupportedError("continuous batching has no dropout: call model.eval()")
            functions = weights, _composed([mod for mod in (*scores, score_mod) if mod is not None]), mask_mod
            return model_caches.attend(module, (query, key, value), options, functions, scaling), None
        if isinstance(attention_mask, ModelMask):
            made = attention_mask.for_keys(query.shape[2], key.shape[2])
            masks.append(made.mask_in_graph() if torch.compiler.is_compiling() else made.mask_mod)
        elif isinstance(attention_mask, torch.Tensor):
            mask, bias = given_mask(attention_mask, (query.shape[0], query.shape[1], query.shape[2], key.shape[2]))
            masks.append(mask)
            scores.append(bias)
        elif attention_mask is not None:
            raise ArgumentError(
                f"attention_mask must be a tensor or made by transformers' mask functions, got {type(attention_mask).__name__}"
            )
        elif query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            masks.append(causal())
        masks = [mask for mask in (*masks, mask_mod) if mask is not None]
        o = attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            row=weights,
            score_mod=_composed([mod for mod in (*scores, score_mod) if mod is not None]),
            mask_mod=and_(*masks) if len(masks) > 1 else next(iter(masks), None),
            scale=scaling,
            layout="bshd",
            dropout_p=dropout,
        )
        return o, None

    return attn_mlir_attention


def _check(module: torch.nn.Module, options: dict[str, Any]) -> None:
    if options.get("output_attentions"):
        remedy = "leave output_attentions out, or use attn_implementation='eager'"
        raise UnsupportedError(f"attn_mlir never holds the attention weights: {remedy}")
    for name in _own_arguments(type(module).__module__):
        if options.get(name) is not None:
            raise UnsupportedError(
                f"the attention of {type(module).__name__} computes with {name!r}, which attn_mlir does not know: "
                "use attn_implementation='eager'"
            )


@torch.compiler.assume_constant_result
@functools.cache
def _own_arguments(module: str) -> tuple[str, ...]:
    """What the eager attention of a model's module computes with, besides what every model hands over."""
    own = getattr(sys.modules.get(module), "eager_attention_forward", None)
    return () if own is None else tuple([name for name in inspect.signature(own).parameters if name not in _ARGUMENTS])


def _with_sink(row: Callable[..., Any], logits: torch.Tensor | None, of_queries: torch.Tensor | None) -> Callable[..., Any]:
    """Softmax with a logit for each head, or with logits [B, H, Sq, 1]."""
    if row is not softmax:
        raise UnsupportedError("the model has attention sinks, which only mean something with softmax: register(row=softmax)")
    if of_queries is None:
        return softmax_sink(logits.reshape(-1))  # type: ignore[union-attr]
    if logits is not None or of_queries.dim() != 4 or of_queries.shape[3] != 1:
        raise UnsupportedError(
            f"the model hands over attention sinks of shape {list(of_queries.shape)}, where attn_mlir knows [batch, heads, queries, 1]: "
            "use attn_implementation='eager'"
        )
    sinks = of_queries[..., 0]

    def softmax_with_sinks(s: Any, b: Any, h: Any, q_idx: Any) -> Any:
        logit = sinks[b, h, q_idx]
        m = maximum(s.max(), logit)
        e = exp(s - m)
        return e / (e.sum() + exp(logit - m))

    return softmax_with_sinks


def _composed(functions: list[ScoreMod]) -> ScoreMod | None:
    if len(functions) < 2:
        return functions[0] if functions else None
    first, *rest = functions

    def all_mods(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        score = first(score, b, h, q_idx, kv_idx)
        for mod in rest:
            score = mod(score, b, h, q_idx, kv_idx)
        return score

    return all_mods
