"""`tune=True` and `tune_file` on the way from the API to a backend's tuner. The tuner here writes down what it is asked, on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attn_mlir import LinearAttention, LinearAttentionEngine, driver, linear_attention, masks
from attn_mlir.api.attention import Attention
from attn_mlir.api.engine import AttentionEngine
from attn_mlir.api.meta import meta_tensor
from attn_mlir.backends.nvidia.tuning.choices import EVERY, with_choices
from attn_mlir.errors import ArgumentError
from attn_mlir.testing.rewriting import Rewriting
from engine_helpers import OnlineSoftmax

Asked = list[dict[str, Any]]
segments: list[int] = []
"""Of how many positions the segments are that the tuner was asked for."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the tuner was asked."""
    calls: Asked = []
    segments.clear()

    def tune(
        texts: Any, function: str, wrt: Any, inputs: Any, *, deterministic: bool, layout: str, file: str, measure: bool, segment: int
    ) -> Any:
        calls.append({"function": function, "wrt": wrt, "inputs": len(inputs), "layout": layout, "file": file, "measure": measure})
        segments.append(segment)
        return tuple(with_choices(text, {f"{function} kernel": {"block_q": 64}}) for text in texts)

    found: Callable[[str], Any] = lambda device: tune  # noqa: E731
    monkeypatch.setattr(driver, "tuner_for", found)
    return calls


def qkv(length: int = 40, gradients: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, length, 16, generator=generator).requires_grad_(gradients) for _ in range(3)]


def check(made: torch.Tensor, given: list[torch.Tensor]) -> None:
    torch.testing.assert_close(made, scaled_dot_product_attention(given[0], given[1], given[2], is_causal=True), atol=1e-5, rtol=1e-5)


def test_the_first_call_of_a_bucket_tunes(asked: Asked) -> None:
    attention = Attention(mask_mod=masks.causal(), tune=True, tune_file="found.json")
    for length in (40, 64, 33, 65):
        check(attention(*qkv(length)), qkv(length))
    assert [call["function"] for call in asked] == ["", ""]  # up to 64, up to 128
    assert asked[0] == {"function": "", "wrt": (), "inputs": 3, "layout": "bhsd", "file": "found.json", "measure": True}
    assert "nvidia.tuned" not in attention.ir("traced")


def test_gradients_tune_forward_and_backward(asked: Asked) -> None:
    given, again = qkv(gradients=True), qkv(gradients=True)
    made = Attention(mask_mod=masks.causal(), tune=True)(*given)
    made.square().sum().backward()
    scaled_dot_product_attention(again[0], again[1], again[2], is_causal=True).square().sum().backward()
    for tensor, wanted in zip(given, again, strict=True):
        torch.testing.assert_close(tensor.grad, wanted.grad, atol=1e-4, rtol=1e-4)
    assert [call["function"] for call in asked] == ["fwd", "bwd"]
    assert asked[1]["wrt"] == ("q", "k", "v")
    assert asked[1]["inputs"] > asked[0]["inputs"]


def test_a_tune_file_alone_measures_nothing(asked: Asked) -> None:
    Attention(mask_mod=masks.causal(), tune_file="found.json")(*qkv())
    assert [call["measure"] for call in asked] == [False]


def engine(**options: Any) -> AttentionEngine:
    meta = tuple(meta_tensor(1, 2, "S", 16, dtype=torch.float32) for _ in range(3))
    mods: dict[str, Any] = {"mask_mod": masks.causal(), "score_mod": lambda s, io, b, h, i, j: s / 4.0}
    return AttentionEngine(meta, online_func=OnlineSoftmax(), **mods, **options)


def test_an_engine_has_files_for_both_passes(asked: Asked) -> None:
    given = [tensor.transpose(1, 2) for tensor in qkv(gradients=True)]
    made = engine(tune=True, tune_file="fwd.json", tune_file_bwd="bwd.json")(*given)
    check(made.transpose(1, 2).detach(), qkv())
    assert [(call["function"].removeprefix("written-"), call["file"], call["measure"]) for call in asked] == [
        ("fwd", "fwd.json", True),
        ("bwd", "bwd.json", False),
    ]


def recurrence(gradients: bool = False) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = qkv(gradients=gradients)
    return q, k, v, -torch.rand(1, 2, 40, generator=torch.Generator().manual_seed(1))


def test_a_linear_attention_tunes_scans_of_both_passes(asked: Asked) -> None:
    given, again = recurrence(gradients=True), recurrence(gradients=True)
    attention = LinearAttention(output_final_state=True, tune=True, tune_file="found.json")
    for o, state in (attention(*given), linear_attention(*again, output_final_state=True)):
        (o.square().sum() + state.square().sum()).backward()
    for leaf, wanted in zip(given[:3], again[:3], strict=True):
        assert wanted.grad is not None
        torch.testing.assert_close(leaf.grad, wanted.grad)
    assert [(call["function"], call["file"], call["measure"]) for call in asked] == [(f, "found.json", True) for f in ("fwd", "bwd")]
    assert asked[1]["wrt"] == ("q", "k", "v")
    attention(*recurrence())
    assert [call["function"] for call in asked] == ["fwd", "bwd", ""]
    assert "nvidia.tuned" in attention.stages()["traced"]


def test_a_tuned_program_keeps_its_segments(asked: Asked) -> None:
    q, k, v = qkv(1100)
    decay = -torch.rand(1, 2, 1100, generator=torch.Generator().manual_seed(1))
    attention = LinearAttention(segment_size=512, tune=True)
    for length, wanted in ((1100, 512), (500, 0)):
        cut = [x[:, :, :length] for x in (q, k, v, decay)]
        made, usual = (f(cut[0], cut[1], cut[2], cut[3]) for f in (attention, linear_attention))
        torch.testing.assert_close(made, usual, atol=1e-4, rtol=1e-4)
        assert segments[-1] == wanted and len(asked) == len(segments)
    assert len(asked) == 2


def test_a_linear_engine_reads_its_file_and_measures_what_it_is_asked(asked: Asked) -> None:
    meta = tuple(meta_tensor(1, 2, "T", 16, dtype=torch.float32) for _ in range(3))
    given = recurrence(gradients=True)
    LinearAttentionEngine(meta, tune_bwd=True, tune_filename="both.json")(*given)
    assert [(call["function"], call["measure"]) for call in asked] == [("fwd", False), ("bwd", True)]
    assert {call["file"] for call in asked} == {"both.json"}
    with torch.no_grad():
        made = LinearAttentionEngine(meta, tune=True)(*given)
    assert (asked[-1]["function"], asked[-1]["file"], asked[-1]["measure"]) == ("", "", True)
    torch.testing.assert_close(made, linear_attention(*given))


@pytest.mark.parametrize("option", ["tune", "tune_bwd"])
def test_without_a_tuner_there_is_nothing_to_choose(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "tuner_for", lambda device: None)
    given = [tensor.transpose(1, 2) for tensor in qkv()]
    tuned = engine(device="cpu", tune_file="none.json", **{option: True})(*given)
    assert torch.equal(tuned, engine(device="cpu")(*given))


def test_an_emulated_device_says_that_nothing_is_measured() -> None:
    q, k, v = (tensor.half() for tensor in qkv(20))
    with pytest.warns(UserWarning, match="tune=True measures nothing: 'hip-emulated' runs kernels on the CPU"):
        tuned = Attention(device="hip-emulated", tune=True)(q, k, v)
    assert torch.equal(tuned, Attention(device="hip-emulated")(q, k, v))


def test_lengths_heads_and_threads_of_a_call_have_their_own_programs(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = Attention(tune=True)
    q, k, v = qkv()
    calls = [(q, k, v), (q, k[:, :1], v[:, :1]), (q, k, v)]
    for count, given in enumerate(calls, 1):
        attention(*given)
        assert len(asked) == min(count, 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    attention(q, k, v)
    assert len(asked) == 3


def test_files_are_paths() -> None:
    with pytest.raises(ArgumentError, match="tune_file is a path, got 3"):
        Attention(tune_file=3)  # type: ignore[arg-type]


def test_choices_can_be_forced() -> None:
    attention: Any = Attention(mask_mod=masks.causal())
    attention._tuning = Rewriting(lambda text: with_choices(text, {EVERY: {"emitter": "tilelang"}}))
    check(attention(*qkv()), qkv())
    assert f'"{EVERY}" = {{emitter = "tilelang"}}' in attention.stages()["traced"]
