"""Habits of PyTorch's users: names of other functions, autocast, attentions as modules."""

import copy
import io
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

import attn_mlir
import engine_programs as ep
from api_helpers import assert_near, inputs, reference
from attn_mlir import (
    Attention,
    AttentionEngine,
    LinearAttention,
    LinearAttentionEngine,
    OnlineSoftmax,
    attention,
    linear_attention,
    masks,
    meta_tensor,
    mods,
    rows,
)

Q: Any
K: Any
V: Any
Q, K, V = inputs(b=1, sq=17, skv=17, d=16, dv=16)
CAUSAL = masks.causal()
LINEAR = tuple(meta_tensor(1, 2, "T", 8, dtype=torch.float32) for _ in range(3))


def error_of(function: Callable[..., Any], **options: Any) -> str:
    with pytest.raises(TypeError) as caught:
        function(**options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("is_causal", "pass mask_mod=attn_mlir.masks.causal()"),
        ("attn_mask", "mask_mod=lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]; one that is added is score_mod=attn_mlir.mods.bias(mask)"),
        ("enable_gqa", "leave it out: q may have a multiple of the heads"),
        ("dropout", "pass dropout_p="),
        ("softmax_scale", "scale"),
        ("scor_mod", "did you mean 'score_mod'?"),
        ("maskmod", "did you mean 'mask_mod'?"),
        ("causel", "did you mean 'causal'? Here, pass mask_mod=attn_mlir.masks.causal()"),
        ("is_casual", "did you mean 'is_causal'? Here, pass mask_mod="),
    ],
)
def test_names_of_other_libraries(name: str, hint: str) -> None:
    options = {name: True}
    for called, function in (
        ("attention()", lambda **given: attention(Q, K, V, **given)),
        ("Attention()", Attention),
        ("AttentionEngine()", lambda **given: AttentionEngine(ep.meta(), **given)),
    ):
        message = error_of(function, **options)
        assert message.startswith(f"{called} got an unexpected keyword argument {name!r}: ") and hint in message


def test_names_in_calls_and_of_linear_attention() -> None:
    made, engine = Attention(mask_mod=CAUSAL), ep.softmax_engine()
    assert "to Attention(...), pass mask_mod=attn_mlir.masks.causal()" in error_of(made, q=Q, k=K, v=V, is_causal=True)
    assert "it is an argument of Attention(...), which is made once" in error_of(made, q=Q, k=K, v=V, scale=1.0)
    assert "did you mean 'dropout_seed'?" in error_of(made, q=Q, k=K, v=V, dropout_sed=(1, 2))
    assert "to AttentionEngine(...), pass mask_mod=" in error_of(engine, q=Q, k=K, v=V, is_causal=True)
    for function in (LinearAttention, lambda **given: linear_attention(Q, K, V, **given), lambda **g: LinearAttentionEngine(LINEAR, **g)):
        assert "linear attention always is causal" in error_of(function, is_causal=True)
        assert "did you mean 'decay_mod'?" in error_of(function, decay_mode=abs)
    assert "linear attention always is causal" in error_of(LinearAttention(), q=Q, k=K, v=V, causal=True)
    assert "'nothing_like_it'" in (message := error_of(Attention, nothing_like_it=1)) and message.endswith("'nothing_like_it'")


@pytest.mark.parametrize(
    ("option", "given", "hint"),
    [
        ("mask_mod", torch.ones(17, 17).bool(), "mask_mod=lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]"),
        ("mask_mod", torch.ones(2, 1, 1, 17).bool(), "mask[b, 0, 0, kv_idx]"),
        ("mask_mod", torch.ones(17, 17), "score_mod=attn_mlir.mods.bias(tensor)"),
        ("score_mod", torch.ones(17, 17), "score_mod=attn_mlir.mods.bias(tensor)"),
        ("row", torch.ones(17, 17).bool(), "a mask that is a tensor is read by a function"),
        ("row", "softmax", "row=attn_mlir.rows.softmax"),
        ("mask_mod", True, "mask_mod=attn_mlir.masks.causal()"),
    ],
)
def test_tensors_where_functions_belong(option: str, given: Any, hint: str) -> None:
    with pytest.raises(attn_mlir.ArgumentError) as caught:
        attention(Q, K, V, **{option: given})
    assert f"{option} must be a function, got {type(given).__name__}: " in str(caught.value) and hint in str(caught.value)


def test_names_inside_torch_compile() -> None:
    cases: tuple[dict[str, Any], ...] = ({"is_causal": True}, {"scor_mod": None})
    for options in cases:
        with pytest.raises(Exception, match="unexpected keyword argument"):
            torch.compile(lambda q, k, v, o=options: attention(q, k, v, **o), backend="eager", fullgraph=True)(Q, K, V)


# autocast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_sdpa_does(dtype: torch.dtype) -> None:
    k, v = (x.repeat_interleave(2, 1) for x in (K, V))
    plain = attention(*(x.to(dtype) for x in (Q, K, V)), mask_mod=CAUSAL)
    with torch.autocast("cpu", dtype=dtype):
        o, lse = attention(Q, K, V, mask_mod=CAUSAL, return_lse=True)
        assert o.dtype == functional.scaled_dot_product_attention(Q, k, v, is_causal=True).dtype == dtype and lse.dtype == torch.float32
        mixed = attention(Q.to(dtype), K, V.half(), mask_mod=CAUSAL)
        double = attention(Q.double(), K.double(), V.double(), mask_mod=CAUSAL)
        with torch.autocast("cpu", enabled=False):
            assert attention(Q, K, V, mask_mod=CAUSAL).dtype == torch.float32
        with pytest.raises(attn_mlir.ArgumentError, match=r"k has dtype torch\.b?float16"):
            attention(Q.double(), K, V)
    assert torch.equal(o, plain) and mixed.dtype == dtype
    assert double.dtype == torch.float64
    assert attention(Q, K, V, mask_mod=CAUSAL).dtype == torch.float32
    assert_near(o, reference(Q, K, V, mask_mod=CAUSAL)[0], 3e-2)


def test_gradients_under_autocast_are_float32() -> None:
    given = [x.clone().requires_grad_() for x in (Q, K, V)]
    slopes = torch.rand(4, requires_grad=True)
    attend = Attention(score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), mask_mod=CAUSAL)
    do = torch.randn(1, 4, 17, 16, generator=torch.Generator().manual_seed(1)).bfloat16()

    def run(q: Any, k: Any, v: Any) -> Any:
        with torch.autocast("cpu"):
            return attend(q, k, v)

    wanted = torch.autograd.grad(attend(*(x.bfloat16() for x in given)), [*given, slopes], do)
    for function in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        o = function(*given)
        made = torch.autograd.grad(o, [*given, slopes], do)
        assert o.dtype == torch.bfloat16 and all(x.dtype == torch.float32 for x in made)
        for one, other in zip(made, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_autocast_around_a_compiled_function() -> None:
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, mask_mod=CAUSAL), backend="aot_eager", fullgraph=True)
    assert compiled(Q, K, V).dtype == torch.float32
    with torch.autocast("cpu"):
        o = compiled(Q, K, V)
    assert torch.equal(o, attention(*(x.bfloat16() for x in (Q, K, V)), mask_mod=CAUSAL))
    assert compiled(Q, K, V).dtype == torch.float32


def test_linear_attention_and_engines_under_autocast() -> None:
    q, k, v = (x[:, :2] for x in (Q, K, V))
    decay = -torch.rand(1, 2, 17)
    half = [x.bfloat16() for x in (q, k, v)]
    linear, made = LinearAttentionEngine(tuple(meta_tensor(1, 2, "T", 16, dtype=torch.float32) for _ in range(3))), LinearAttention()
    wanted, state = linear_attention(*half, decay=decay, output_final_state=True)
    plain = ep.softmax_engine()
    tensors = [x.transpose(1, 2).contiguous() for x in (Q, K, V)]
    bias = torch.rand(4)
    with torch.autocast("cpu"):
        o, final = linear_attention(q, k, v, decay, output_final_state=True)
        assert torch.equal(o, wanted) and torch.equal(final, state) and final.dtype == torch.float32
        assert made(q, k, v, decay).dtype == torch.bfloat16
        x, dt = torch.randn(1, 9, 2, 8), torch.rand(1, 9, 2)
        y = attn_mlir.mamba2(x, dt, -torch.ones(2), x.bfloat16(), x, D=torch.ones(2, 8), z=x)
        assert y.dtype == torch.bfloat16
        # An engine has a dtype of its own, which its inputs get, as those of torch.amp.custom_fwd do.
        assert torch.equal(linear(*half, decay), linear(*[x.float() for x in half], decay))
        assert torch.equal(plain(*(x.bfloat16() for x in tensors), bias), plain(*(x.bfloat16().float() for x in tensors), bias))


@pytest.mark.gpu
def test_autocast_on_a_gpu() -> None:
    given = [x.cuda().requires_grad_() for x in (Q, K, V)]
    with torch.autocast("cuda", dtype=torch.float16):
        o = attention(*given, mask_mod=CAUSAL)
        assert attention(Q, K, V).dtype == torch.float32  # on the CPU
    o.sum().backward()
    assert o.dtype == torch.float16 and given[0].grad is not None and given[0].grad.dtype == torch.float32


# modules


class Slopes(torch.nn.Module):
    """ALiBi with slopes that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.0625]))

    def forward(self, score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + self.slopes[h] * (kv_idx - q_idx)


def saved(module: Any) -> Any:
    file = io.BytesIO()
    torch.save(module, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


COPIES = {"pickle": lambda m: pickle.loads(pickle.dumps(m)), "deepcopy": copy.deepcopy, "copy": copy.copy, "save": saved}


@pytest.mark.parametrize("again", COPIES.values(), ids=COPIES)
def test_attentions_are_made_again(again: Callable[[Any], Any]) -> None:
    made = Attention(score_mod=Slopes(), mask_mod=masks.and_("t:5,2", masks.not_(masks.dilated(3))), return_lse=True)
    setattr(made, "note", "kept")
    other = again(made)
    assert type(other) is Attention and other.note == "kept" and list(other.state_dict()) == ["score_mod.slopes"]
    for one, two in zip(made(Q, K, V), other(Q, K, V), strict=True):
        assert torch.equal(one, two)
    linear, decay = LinearAttention(scale=0.5, output_final_state=True), -torch.rand(1, 2, 17)
    for one, two in zip(linear(K, K, V, decay), again(linear)(K, K, V, decay), strict=True):
        assert torch.equal(one, two)


def test_what_was_set_later_is_kept() -> None:
    made = Attention(dropout_p=0.1)
    made.dropout_p, made.deterministic = 0.5, True
    other = pickle.loads(pickle.dumps(made))
    assert other.dropout_p == 0.5 and other.deterministic


def test_parameters_of_ready_made_functions() -> None:
    """They are the module's; a deep copy has its own, which the copied function reads."""
    bias, sinks = (torch.nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(5))) for shape in ((4, 17, 17), (4,)))
    made = Attention(score_mod=mods.bias(bias), row=rows.softmax_sink(sinks), mask_mod=CAUSAL)
    assert dict(made.named_parameters()) == {"score_mod.bias": bias, "row.sink": sinks}
    before = made(Q, K, V)
    other, through = copy.deepcopy(made), pickle.loads(pickle.dumps(made))
    assert other.get_parameter("row.sink") is not sinks
    with torch.no_grad():
        other.get_parameter("row.sink").add_(1.0)
        through.get_parameter("score_mod.bias").zero_()
    assert torch.equal(made(Q, K, V), before) and not torch.equal(other(Q, K, V), before) and not torch.equal(through(Q, K, V), before)
    made.load_state_dict(other.state_dict())
    assert torch.equal(made(Q, K, V), other(Q, K, V)) and sinks.sum() == other.get_parameter("row.sink").sum()
    made(Q, K, V).sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())


def test_tensors_of_ready_made_functions_move() -> None:
    """Those that are no parameters, too; here `to` another dtype stands for another device."""
    slopes = mods.alibi_slopes(4)
    made = Attention(score_mod=mods.alibi(slopes), mask_mod=masks.and_(masks.document(torch.arange(17) // 5), CAUSAL))
    expected = made(Q, K, V)
    hooked = []
    made.register_forward_hook(lambda *_: hooked.append(1))
    moved = made.to(torch.float64)
    assert moved is made and made._arguments["score_mod"] is not mods.alibi(slopes)
    torch.testing.assert_close(made(Q, K, V), expected)
    assert hooked == [1] and slopes.dtype == torch.float32
    assert next(iter(attn_mlir.api.makers.tensors_of(made._arguments["score_mod"]).values())).dtype == torch.float64  # type: ignore[attr-defined]
    functions = made._functions
    made.to("cpu")
    assert made._functions is functions, "nothing moved, so nothing is made again"


def test_modules_in_models() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = Attention(score_mod=Slopes(), dropout_p=0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attend(x, x, x)

    block = Block()
    assert [name for name, _ in block.named_parameters()] == ["attend.score_mod.slopes"]
    torch.manual_seed(0)
    trained = block(Q)
    evaluated = block.eval()(Q)
    assert not torch.equal(trained, evaluated) and torch.equal(evaluated, block(Q)), "eval() sets dropout aside"
    assert not torch.equal(block.attend(Q, Q, Q, dropout_p=0.5), evaluated), "unless a call asks for it"
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(Q), evaluated)
    compiled(Q).sum().backward()
    assert block.get_parameter("attend.score_mod.slopes").grad is not None
    with pytest.raises(attn_mlir.ArgumentError, match="score_mod of an engine is fixed"):
        block.attend.score_mod = None


def test_engines_with_dropout_evaluate_without() -> None:
    engine = AttentionEngine(ep.meta(), None, ep.Learned(), ep.causal, OnlineSoftmax(), dropout_p=0.5)
    tensors = [x.transpose(1, 2).contiguous() for x in (Q, K, V)]
    assert not torch.equal(engine(*tensors), engine(*tensors))
    assert torch.equal(engine.eval()(*tensors), engine(*tensors))


def test_names_of_cases_hold_no_addresses(request: pytest.FixtureRequest) -> None:
    conftest = request.config.pluginmanager.get_plugin(str(request.config.rootpath / "test" / "conftest.py"))
    case = SimpleNamespace(nodeid=f"test_x.py::test_y[{error_of}]")
    with pytest.raises(pytest.UsageError, match="names of cases hold addresses in memory"):
        conftest.pytest_collection_modifyitems([case])  # type: ignore[union-attr]
