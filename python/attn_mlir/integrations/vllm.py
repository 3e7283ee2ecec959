"""attn_mlir as the attention of vLLM's models, through its CUSTOM backend: rows, score functions and masks of the user's own.

from attn_mlir.integrations.vllm import register
register(row=attn_mlir.rows.sigmoid)  # in every process, as a plugin of vLLM does
LLM(model, attention_config={"backend": "CUSTOM"})

Written to the interface of vLLM's v1 attention (`vllm/v1/attention/backend.py`) and tested against a runner that stands for it: vLLM has
not run it. It works where `attention_varlen` reads caches in pages: on the CPU, and on Hopper and AMD GPUs.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from attn_mlir.api.masks import Mask, and_, causal, parse, sliding_window
from attn_mlir.api.mods import ScoreMod, alibi, softcap
from attn_mlir.api.rows import softmax, softmax_sink
from attn_mlir.api.varlen import attention_varlen
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.sizes import kv_len, q_len, whole_sequences

try:
    from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder  # pyright: ignore[reportMissingImports]
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise UnsupportedError(f"vLLM cannot be imported ({error}): install a version with vllm.v1.attention.backend") from error

_PATH = f"{__name__}.VllmBackend"


@dataclasses.dataclass
class _Functions:
    """What `register` was given."""

    row: Callable[..., Any] = softmax
    score_mod: ScoreMod | None = None
    mask_mod: Mask | None = None


_functions = _Functions()


def register(row: Callable[..., Any] = softmax, score_mod: ScoreMod | None = None, mask_mod: Mask | str | None = None) -> None:
    """Registers vLLM's CUSTOM backend: attentions of models that are made later have this row, and these on top of their own.

    Functions get the request as b, and positions in the whole request, of queries, too; q_len() is kv_len(), so that masks and ALiBi
    that are aligned to the last query are what they are without a cache.
    """
    _functions.row, _functions.score_mod = row, score_mod
    _functions.mask_mod = parse(mask_mod) if isinstance(mask_mod, str) else mask_mod
    register_backend(AttentionBackendEnum.CUSTOM, _PATH)


@dataclasses.dataclass
class Metadata:
    """What a step's requests are: of `query_start_loc` and `seq_lens` those that are real, `num_actual_tokens` of their tokens."""

    num_actual_tokens: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool


class MetadataBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Makes the metadata of a step, shared by all layers."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Metadata:
        """See vLLM's."""
        common, count = common_attn_metadata, common_attn_metadata.num_reqs
        return Metadata(
            common.num_actual_tokens,
            common.query_start_loc[: count + 1].to(torch.int32),
            common.seq_lens[:count].to(torch.int32),
            common.block_table_tensor[:count].to(torch.int32),
            common.slot_mapping[: common.num_actual_tokens],
            bool(common.causal),
        )


class Impl(AttentionImpl):  # type: ignore[misc]
    """The attention of one layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if str(getattr(attn_type, "value", attn_type)) != "decoder":
            raise UnsupportedError(f"attn_mlir serves vLLM's decoders, got attention of type {attn_type}: use another backend")
        if "fp8" in kv_cache_dtype or "int8" in kv_cache_dtype:
            raise UnsupportedError(f"attn_mlir reads no quantised caches, got kv_cache_dtype={kv_cache_dtype!r}: use 'auto'")
        self.heads = num_heads, num_kv_heads, head_size
        self.scale, self.shared = float(scale), kv_sharing_target_layer_name is not None
        scores = [softcap(logits_soft_cap)] if logits_soft_cap else []
        scores += [alibi(torch.tensor(alibi_slopes, device="cpu"), align="bottom_right")] if alibi_slopes is not None else []
        user = _functions
        scores += [_positioned_score(user.score_mod)] if user.score_mod is not None else []
        self.score_mod = _composed(scores)
        self.row = user.row if sinks is None else softmax_sink(sinks)
        if sinks is not None and user.row is not softmax:
            raise UnsupportedError("the model has attention sinks, which only mean something with softmax: register(row=softmax)")
        of_user = [] if user.mask_mod is None else [_positioned_mask(user.mask_mod)]
        self.masks = {seen: _joined([*_seen(seen, sliding_window), *of_user]) for seen in (True, False)}

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        kv_cache: torch.Tensor,
        attn_metadata: Metadata | None,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Writes keys and values into their pages, and o into `output`, [tokens, heads, head_size] or with heads joined."""
        if output is None or output_scale is not None or output_block_scale is not None:
            raise UnsupportedError("attn_mlir writes into vLLM's output, which it does not quantise")
        if attn_metadata is None:  # a step that only measures memory
            return output.zero_()
        count, (heads, _, size) = attn_metadata.num_actual_tokens, self.heads
        k_cache, v_cache = kv_cache.unbind(0)
        if key is not None and value is not None and not self.shared:
            _write(k_cache, key[:count], attn_metadata.slot_mapping)
            _write(v_cache, value[:count], attn_metadata.slot_mapping)
        o = attention_varlen(
            query[:count].view(count, heads, size),
            k_cache,
            v_cache,
            attn_metadata.query_start_loc,
            seqused_k=attn_metadata.seq_lens,
            block_table=attn_metadata.block_table,
            row=self.row,
            score_mod=self.score_mod,
            mask_mod=self.masks[attn_metadata.causal],
            scale=self.scale,
        )
        output[:count] = o.view_as(output[:count])
        return output


class VllmBackend(AttentionBackend):  # type: ignore[misc]
    """What vLLM asks for by its path."""

    accept_output_buffer = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]

    @staticmethod
    def get_name() -> str:
        """See vLLM's."""
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[Impl]:
        """See vLLM's."""
        return Impl

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        """See vLLM's."""
        return MetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Pages of keys, then pages of values."""
        return 2, num_blocks, block_size, num_kv_heads, head_size

    @classmethod
    def supports_sink(cls) -> bool:
        """See vLLM's."""
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """A request has the same bits in every batch."""
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        """See vLLM's."""
        return True


def _write(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    """Writes rows [tokens, heads, dim] into pages; a negative slot is that of no token."""
    real, size = slots >= 0, cache.shape[1]
    cache[slots[real] // size, slots[real] % size] = rows[real].view(-1, *cache.shape[2:])


def _seen(is_causal: bool, window: int | None) -> list[Mask]:
    if window is not None:
        return [sliding_window(window - 1, 0 if is_causal else window - 1, align="bottom_right")]
    return [causal("bottom_right")] if is_causal else []


def _joined(masks: list[Mask]) -> Mask | None:
    return and_(*masks) if len(masks) > 1 else next(iter(masks), None)


def _positioned_score(function: ScoreMod) -> ScoreMod:
    """A score function whose queries count in the whole request: the new ones are its last."""

    def positioned(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        position = q_idx + kv_len() - q_len()
        with whole_sequences():
            return function(score, b, h, position, kv_idx)

    return positioned


def _positioned_mask(function: Mask) -> Mask:
    """The same of a mask."""

    def positioned(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        position = q_idx + kv_len() - q_len()
        with whole_sequences():
            return function(b, h, position, kv_idx)

    return positioned


def _composed(functions: list[ScoreMod]) -> ScoreMod | None:
    if not functions:
        return None

    def all_mods(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        for mod in functions:
            score = mod(score, b, h, q_idx, kv_idx)
        return score

    return all_mods
