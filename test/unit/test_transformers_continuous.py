"""transformers' continuous batching with its paged cache on the CPU: a random small Llama gives the tokens that it gives alone."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from attn_mlir import rows  # noqa: E402
from attn_mlir.integrations import model_caches  # noqa: E402
from attn_mlir.integrations.transformers import register, restore_continuous  # noqa: E402


@pytest.fixture
def registered() -> Iterator[None]:
    before = transformers.AttentionInterface()["paged|eager"]
    register("attn_mlir", continuous=True)
    assert transformers.AttentionInterface()["paged|eager"] is not before
    yield
    restore_continuous()
    restore_continuous()
    assert transformers.AttentionInterface()["paged|eager"] is before


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_requests_get_the_tokens_of_generate(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of different lengths: prefill and decoding share steps, as few tokens fit into one; pages are smaller than prompts."""
    attended, attend = [], model_caches.attend

    def counted(*arguments: Any) -> torch.Tensor:
        attended.append(arguments[1][0].shape[2])
        return attend(*arguments)

    monkeypatch.setattr(model_caches, "attend", counted)
    model = llama()
    options = transformers.GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=-1, pad_token_id=0)
    prompts = [torch.randint(1, 64, (n,)).tolist() for n in (5, 33, 1)]
    alone = [model.generate(torch.tensor([p]), generation_config=options)[0, len(p) :].tolist() for p in prompts]
    model.set_attn_implementation("paged|eager")
    batching = transformers.ContinuousBatchingConfig(page_size=16, num_blocks=32, max_batch_tokens=24)
    found = model.generate_batch(prompts, generation_config=options, continuous_batching_config=batching)
    assert [request.generated_tokens for request in found.values()] == alone
    assert len(attended) >= 2 * 6 and max(attended) > 3


def test_dropout_is_refused(registered: None) -> None:
    attention = transformers.AttentionInterface()["paged|eager"]
    x = torch.randn(1, 2, 3, 16)
    with pytest.raises(Exception, match="continuous batching has no dropout"):
        attention(torch.nn.Module(), x, x, x, None, dropout=0.1, cache=object())


def test_the_name_goes_back_to_the_first(registered: None) -> None:
    """A second registration replaces the first; what is restored is transformers' own, as the fixture checks."""
    register("with_relu", row=rows.relu, continuous=True)
