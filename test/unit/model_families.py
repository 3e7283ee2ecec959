"""Families of transformers' models, small and random: what they compute with one attention and with another.

python test/unit/model_families.py prints the table of docs/transformers.md.
"""

import dataclasses
import os
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")

_ONE_OF_EACH = {"layer_types": ["linear_attention", "full_attention"]}
_WINDOWS = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts_per_tok": 1, "num_local_experts": 2}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_expand": 2, "mamba_n_groups": 1, "mamba_chunk_size": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Mistral": {"sliding_window": 4},
    "Gemma2": {"layer_types": ["full_attention"] * 2, "query_pre_attn_scalar": 5, "attn_logit_softcapping": 2.0},
    "Gemma3": {**_WINDOWS, "query_pre_attn_scalar": 16},
    "GptOss": {"sliding_window": 4, "layer_types": ["sliding_attention"] * 2, **_EXPERTS},
    "Qwen3": {},
    "Qwen3Next": {
        **_ONE_OF_EACH, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    },
    "Phi3": {},
    "Cohere2": _WINDOWS,
    "DeepseekV3": {
        "num_key_value_heads": 2, "head_dim": 8, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 32, "first_k_dense_replace": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 16, "num_mtp_layers": 0,
    },
    "FalconH1": {**_MAMBA, "mamba_d_ssm": 64},
    "Bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "MiniMax": {**_ONE_OF_EACH, **_EXPERTS, "block_size": 4},
    "Mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 8},
    "Bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "T5": {
        "d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 8, "dropout_rate": 0.0, "decoder_start_token_id": 0,
    },
}  # fmt: skip
"""What their configurations have besides `_COMMON`: head dimensions and masks that kernels are compiled for once."""
RECURRENT = ("FalconH1", "Bamba", "Mamba2")
"""Those with layers of Mamba-2."""
_COMMON = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0, "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip
_CLASSES = {"Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"), "Bert": ("BertConfig", "BertForMaskedLM")}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a model computes of a batch, of which the first sequence is padded on the left."""

    logits: torch.Tensor
    """Of positions that are not padding."""
    gradients: list[torch.Tensor]
    """Of the loss, with respect to all parameters, in training mode."""
    tokens: list[list[int]]
    """What it generates greedily; nothing where a model does not generate."""


def made(kind: str, **config: Any) -> Any:
    """A model with random weights and transformers' eager attention."""
    import transformers

    names = _CLASSES.get(kind, (f"{kind}Config", "T5ForConditionalGeneration" if kind == "T5" else f"{kind}ForCausalLM"))
    common = {} if kind == "Mamba2" else _COMMON
    if kind == "Mamba2":
        common = {name: value for name, value in _COMMON.items() if not name.startswith(("num_att", "num_key", "head"))}
    if kind == "Bert":
        common = {name: value for name, value in _COMMON.items() if name not in ("head_dim", "num_key_value_heads")}
    torch.manual_seed(0)
    options = {**common, **FAMILIES[kind], **config}
    model = getattr(transformers, names[1])(getattr(transformers, names[0])(**options, attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if kind == "T5" else 0.3))  # T5's scores have no scale
    return model


def inputs() -> dict[str, torch.Tensor]:
    """Two sequences, the first padded on the left."""
    ids = torch.randint(1, 50, (2, 11), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    return {"input_ids": ids.where(mask.bool(), 0), "attention_mask": mask}


def labels_of(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """The tokens, but those that padding would have to predict: what attention gives where no key is present is for each to say."""
    mask = given["attention_mask"].bool()
    return given["input_ids"].where(mask & mask.roll(1, dims=1), -100)


def outcome(model: Any, tokens: int = 3) -> Outcome:
    """What the model computes of `inputs()`, with the attention that it has."""
    given = inputs()
    labels = labels_of(given)
    model.train()
    loss = model(**given, labels=labels).loss
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    model.eval()
    decoder = {"decoder_input_ids": given["input_ids"]} if model.config.is_encoder_decoder else {}
    with torch.inference_mode():
        logits = model(**given, **decoder).logits
    # What transformers' eager attention reads of MiniMax's cache includes padding.
    cache = {"use_cache": False} if model.config.model_type == "minimax" and model.config._attn_implementation == "eager" else {}
    generated = model.generate(**given, max_new_tokens=tokens, do_sample=False, **cache).tolist() if model.can_generate() else []
    present = torch.ones_like(labels, dtype=torch.bool) if decoder else given["attention_mask"].bool()
    return Outcome(logits[present], [g for g in gradients if g is not None], generated)


def differences(got: Outcome, expected: Outcome) -> tuple[float, float]:
    """The largest one of logits, relative to the largest logit, and that of all gradients in norms."""
    logits = (got.logits - expected.logits).abs().max() / expected.logits.abs().max()
    wrong = torch.stack([(g - e).norm() for g, e in zip(got.gradients, expected.gradients, strict=True)]).norm()
    return logits.item(), (wrong / torch.stack([e.norm() for e in expected.gradients]).norm()).item()


def main() -> None:
    from attn_mlir.integrations.transformers import register, restore_linear

    print("| family | logits | gradients | generates the same |\n|---|--:|--:|---|")
    for kind in FAMILIES:
        model = made(kind)
        expected = outcome(model)
        model.set_attn_implementation(register(linear=kind in RECURRENT))
        got = outcome(model)
        restore_linear()
        logits, gradients = differences(got, expected)
        same = "-" if not got.tokens else "yes" if got.tokens == expected.tokens else "NO"
        print(f"| {kind} | {logits:.1e} | {gradients:.1e} | {same} |", flush=True)


if __name__ == "__main__":
    main()
