"""Tracing of linear attention: the IR computes what the functions say, and mistakes are told in the user's words."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.api.call import linear_arguments
from attn_mlir.api.linear_inputs import check_linear
from attn_mlir.api.options import call_form
from attn_mlir.errors import ArgumentError, AttnError, TraceError, UnsupportedError
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from linear_reference import error, reference
from trace_helpers import evaluate_text

B, H, T, K, V = 2, 4, 9, 6, 5
generator = torch.Generator().manual_seed(0)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


Q, KEYS, VALUES, STATE = randn(B, 2, T, K), randn(B, 1, T, K), randn(B, H, T, V), randn(B, H, K, V)
DT, A, RATES = randn(B, H, T).abs(), -randn(H).abs(), -randn(H, K).abs()
NO_MODS: tuple[Any, ...] = (None,) * 5


def evaluated(mods: tuple[Any, ...] = NO_MODS, q: Any = Q, k: Any = KEYS, v: Any = VALUES, **options: Any) -> list[torch.Tensor]:
    """o and the final state, as the float64 evaluator computes the traced IR."""
    layout, cu_seqlens = options.get("layout", "bhsd"), options.get("cu_seqlens")
    call = check_linear((q, k, v), options.get("decay"), options.get("initial_state"), cu_seqlens, layout)
    entry, scan = call_form(call, options.get("scale", 1.0), True, None).find((*mods, None), None)
    q, k, captures = linear_arguments(entry.traced, call, entry.captures(scan, 0.0))
    return evaluate_text(entry.traced.text, q, k, call.v, captures)


@pytest.mark.parametrize(
    ("decay", "options"),
    [
        (None, {}),
        (A, {}),
        (RATES, {}),
        (-DT, {"initial_state": STATE}),
        (-randn(B, H, T, K).abs(), {"initial_state": STATE}),
        (-DT, {"scale": 0.25}),
    ],
)
def test_every_form_of_decay(decay: torch.Tensor | None, options: dict[str, Any]) -> None:
    o, final = evaluated(decay=decay, **options)
    expected, state = reference(Q, KEYS, VALUES, decay, **options)
    assert error(o, expected) < 1e-14
    assert error(final, state) < 1e-14


def _by_element(x: Any) -> Any:
    return torch.nn.functional.silu(x)


def _by_step(x: Any, b: Any, h: Any, t: Any) -> Any:
    return x * DT[b, h, t]


def _by_place(x: Any, b: Any, h: Any, t: Any, d: Any) -> Any:
    return x * RATES[h, d] + 0.125 * t - b


def _decay(g: Any, b: Any, h: Any, t: Any) -> Any:
    return g * A[h] * -1.0


def _channels(g: Any, b: Any, h: Any, t: Any, d: Any) -> Any:
    return g + RATES[h, d]


@pytest.mark.parametrize("mod", [_by_element, _by_step, _by_place])
@pytest.mark.parametrize("which", ["q_mod", "k_mod", "v_mod"])
def test_mods_read_the_head_of_o(which: str, mod: Callable[..., Any]) -> None:
    if which == "v_mod" and mod is _by_place:  # whose table has the columns of k
        mod = _by_step
    mods = tuple(mod if name == which else None for name in ("q_mod", "k_mod", "v_mod", "decay_mod", "skip_mod"))
    options: dict[str, Any] = {which: mod}
    expected, state = reference(Q, KEYS, VALUES, -DT, **options)
    o, final = evaluated(mods, decay=-DT)
    assert error(o, expected) < 1e-14
    assert error(final, state) < 1e-14


@pytest.mark.parametrize("decay", [None, A, -DT])
@pytest.mark.parametrize("mod", [_decay, _channels])
def test_decay_mods(mod: Callable[..., Any], decay: torch.Tensor | None) -> None:
    expected, state = reference(Q, KEYS, VALUES, decay, decay_mod=mod)
    o, final = evaluated((None, None, None, mod, None), decay=decay)
    assert error(o, expected) < 1e-14
    assert error(final, state) < 1e-14


@pytest.mark.parametrize("mod", [None, _by_element, _by_step])
def test_a_skip_takes_v_as_it_was_before_its_mod(mod: Any) -> None:
    skip = lambda b, h, t: A[h] * DT[b, h, t] + 0.5 * t  # noqa: E731
    expected, state = reference(Q, KEYS, VALUES, -DT, v_mod=mod, skip_mod=skip)
    o, final = evaluated((None, None, mod, None, skip), decay=-DT)
    assert error(o, expected) < 1e-14
    assert error(final, state) < 1e-14


def test_sequences_in_one() -> None:
    bounds = [0, 2, 2, 7, T]
    states = randn(4, H, K, V)
    given = (Q[:1], KEYS[:1], VALUES[:1], -DT[:1])
    options = {"initial_state": states, "cu_seqlens": torch.tensor(bounds, dtype=torch.int32)}
    o, final = evaluated(NO_MODS, *given[:3], decay=given[3], **options)
    expected, state = reference(*given, initial_state=states, cu_seqlens=bounds)
    assert error(o, expected) < 1e-14
    assert error(final, state) < 1e-14


def test_the_other_layout() -> None:
    turned = [x.transpose(1, 2) for x in (Q, KEYS, VALUES, -DT)]
    o, _ = evaluated(NO_MODS, *turned[:3], decay=turned[3], layout="bshd")
    assert error(o, reference(Q, KEYS, VALUES, -DT)[0]) < 1e-14


def test_numbers_are_arguments_and_heads_are_those_of_o() -> None:
    factor = 2.0

    def mod(x: Any, b: Any, h: Any, t: Any) -> Any:
        return x * factor * attn_mlir.num_heads()

    o, _ = evaluated((None, None, mod, None, None))
    assert error(o, reference(Q, KEYS, VALUES)[0] * (2.0 * H)) < 1e-14
    traced = trace_linear(LinearDefinition(v_mod=mod), check_linear((Q, KEYS, VALUES), None, None, None, "bhsd").problem.inputs)
    assert [(captured.name, captured.kind) for captured in traced.captures] == [("factor", "float")]


def test_only_mods_that_read_the_head_need_all_heads() -> None:
    inputs = check_linear((Q, KEYS, VALUES), None, None, None, "bhsd").problem.inputs
    traced = trace_linear(LinearDefinition(q_mod=lambda x, b, h, t: x * t, k_mod=_by_step), inputs)
    assert traced.by_head == ("k",)


def test_the_inputs_come_first_and_keep_their_names() -> None:
    decay, initial_state = DT, STATE

    def mod(x: Any, b: Any, h: Any, t: Any, d: Any) -> Any:
        return x * decay[b, h, t] + initial_state[b, h, 0, d]

    program = LinearDefinition(v_mod=mod, decay="step", initial_state=True, offsets="i64")
    traced = trace_linear(program, check_linear((Q, KEYS, VALUES), None, None, None, "bhsd").problem.inputs)
    assert traced.linear == ("decay", "initial_state", "cu_seqlens")
    assert [captured.name for captured in traced.captures] == ["decay", "initial_state", "cu_seqlens", "decay_1", "initial_state_1"]


def raises(kind: type[AttnError] | tuple[type[AttnError], ...], text: str) -> Any:
    return pytest.raises(kind, match=re.escape(text))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"q": "no"}, "q must be a torch.Tensor, got str"),
        ({"k": KEYS.float()}, "k has dtype torch.float32 but q has torch.float64: cast one of them"),
        ({"k": KEYS[:, :, :4]}, "k has 4 positions but q has 9: q, k and v of linear attention have the same"),
        ({"k": KEYS[..., :5]}, "k has head dimension 5 but q has 6"),
        ({"q": Q.expand(-1, 2, -1, -1).repeat(1, 3, 1, 1)}, "v has 4 heads, which is no multiple of the 6 heads of q"),
        ({"v": VALUES[:1]}, "v has batch size 1 but q has 2"),
        ({"decay": -0.5}, "decay must be a torch.Tensor or None, got float: for the same log decay everywhere pass torch.full((H,), g)"),
        ({"decay": DT[:, :2]}, "decay has shape [2, 2, 9], but [B, H, T] is [2, 4, 9] in this call"),
        ({"decay": DT.mT, "layout": "bhsd"}, "decay has shape [2, 9, 4], but [B, H, T] is [2, 4, 9] in this call"),
        ({"decay": DT.long()}, "decay has dtype torch.int64: use float32"),
        (
            {"initial_state": STATE.mT},
            "initial_state has shape [2, 4, 5, 6], but [B, H, K, V] is [2, 4, 6, 5] in",
        ),
        ({"cu_seqlens": torch.tensor([0, T])}, "with cu_seqlens all sequences are in one, of batch size 1, but the batch size is 2"),
        ({"cu_seqlens": torch.tensor([0.0, T])}, "cu_seqlens has dtype"),
        ({"cu_seqlens": torch.tensor([0])}, "cu_seqlens must be [sequences + 1]"),
        ({"scale": "big"}, "scale must be a number or None, got str"),
        ({"scale": torch.ones((), requires_grad=True)}, "or with linear attention in q_mod, as in lambda x: x * scale; or pass"),
        ({"layout": "sbhd"}, 'layout is "bhsd"'),
    ],
)
def test_wrong_arguments(changes: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"q": Q, "k": KEYS, "v": VALUES, **changes}
    with raises((ArgumentError, UnsupportedError), text):
        attn_mlir.linear_attention(**given)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"q": Q}, f"a step takes one position, but q has {T}: linear_attention takes many"),
        ({"v": VALUES[:, :, :1]}, "q is [B, H, K], so that v must have 3 dimensions, too, got shape [2, 4, 1, 5]"),
        ({"decay": RATES}, "so that decay must be [H], [B, H] or [B, H, K], got shape [4, 6]; [H, K] needs q with positions"),
        ({"state": STATE.mT}, "state has shape [2, 4, 5, 6], but [B, H, K, V] is [2, 4, 6, 5] in this call"),
        ({"q": Q[0, :, 0]}, "q must be [B, H, K], or [B, H, 1, K] with a position, got shape ["),
        ({"q": Q[0, :, 0], "layout": "bshd"}, "q must be [B, H, K], or [B, 1, H, K] with a position, got shape ["),
    ],
)
def test_wrong_arguments_of_a_step(changes: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"q": Q[:, :, 0], "k": KEYS[:, :, 0], "v": VALUES[:, :, 0], **changes}
    with raises(ArgumentError, text):
        attn_mlir.linear_attention_step(**given)


@pytest.mark.parametrize(
    ("role", "mod", "text"),
    [
        ("v_mod", lambda x, b: x, "v_mod `<lambda>`: takes (x, b), but is called with (x) or (x, b, h, t) or (x, b, h, t, d)"),
        ("k_mod", lambda x: None, "must return the changed element, but returned None"),
        ("decay_mod", lambda g: g > 0, "must return the changed log decay, but returned a condition"),
        ("v_mod", lambda x, b, h, t: x * DT, "computes with all of `DT`"),
        ("q_mod", lambda x: x.undefined(), "has no attribute"),
        ("k_mod", lambda x: x.softmax(-1), "other tensors, q, k and v among them, can be reduced before the call"),
        ("q_mod", 3.0, "q_mod must be a function, got float"),
    ],
)
def test_mistakes_in_mods_show_when_the_object_is_made(role: str, mod: Any, text: str) -> None:
    with pytest.raises((TraceError, ArgumentError)) as caught:
        attn_mlir.LinearAttention(**{role: mod})
    assert text in str(caught.value)
