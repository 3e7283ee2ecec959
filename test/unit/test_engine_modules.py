"""Engines as modules of torch: copies, pickles, other processes, parameters, torch.compile."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch

import engine_programs as ep
from attn_mlir import AttentionEngine, LinearAttentionEngine, OnlineSoftmax, create_block_mask, masks
from attn_mlir.errors import ArgumentError


@pytest.fixture(scope="module")
def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 19, 4, 16), (1, 19, 2, 16), (1, 19, 2, 16), (4,))
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def expected(tensors: list[torch.Tensor], slope: Any) -> torch.Tensor:
    """The same densely in float64; `slope` is the bias for each key, of every head or of all."""
    q, k, v = (x.double().transpose(1, 2) for x in tensors[:3])
    s = q @ k.repeat_interleave(2, 1).mT * 0.25 + slope * torch.arange(19.0).double()
    s = s.masked_fill(~torch.ones(19, 19, dtype=torch.bool).tril(), -torch.inf)
    return (s.softmax(-1) @ v.repeat_interleave(2, 1)).transpose(1, 2)


def saved(engine: Any) -> Any:
    file = io.BytesIO()
    torch.save(engine, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize(
    "again",
    [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy, copy.copy, saved, lambda e: torch.nn.Sequential(e).to("cpu").eval()[0]],
    ids=["pickle", "deepcopy", "copy", "torch.save", "module"],
)
def test_engines_are_made_again(tensors: list[torch.Tensor], again: Any) -> None:
    engine = ep.softmax_engine()
    setattr(engine, "note", "kept")
    made = again(engine)
    assert isinstance(made, AttentionEngine) and made.note == "kept"
    torch.testing.assert_close(made(*tensors).double(), expected(tensors, tensors[3][:, None, None]), rtol=1e-5, atol=1e-5)
    q = tensors[0].clone().requires_grad_()
    for one, other in zip(*(torch.autograd.grad(e(q, *tensors[1:]).square().sum(), q) for e in (engine, made)), strict=True):
        assert torch.equal(one, other)
    t = [x.transpose(1, 2) for x in tensors[1:3]]
    linear, decay = ep.linear_engine(), -torch.rand(1, 2, 19)
    assert torch.equal(again(linear)(t[0], t[0], t[1], decay), linear(t[0], t[0], t[1], decay))
    assert "OnlineSoftmax" not in repr(made) and "Mine" in repr(made) and made.state_dict() == {}


def test_subclasses_are_not_made_by_their_own_arguments(tensors: list[torch.Tensor]) -> None:
    engine = ep.Named("first")
    engine.name = "second"
    made = pickle.loads(pickle.dumps(engine))
    assert type(made) is ep.Named and made.name == "second"
    assert torch.equal(made(*tensors), engine(*tensors))


def test_what_an_online_function_holds_is_pickled() -> None:
    online = pickle.loads(pickle.dumps(ep.Mine("here")))
    assert online.note == "here" and online.online_rowscales["m"].initial == OnlineSoftmax().online_rowscales["m"].initial
    custom = copy.deepcopy(ep.BIASED)
    assert custom.input_tensors["bias"].dims == ("heads",) and custom.input_tensors["bias"].name == "bias"


def test_another_process_computes(tensors: list[torch.Tensor]) -> None:
    engine = ep.softmax_engine()
    with torch.multiprocessing.get_context("spawn").Pool(1) as pool:
        assert torch.equal(pool.apply(ep.run, (engine, tensors)), engine(*tensors))


@pytest.mark.parametrize(
    "mask",
    [
        masks.causal("bottom_right"),
        masks.sliding_window(3, right=1),
        masks.and_("b:9,3,2", masks.or_(masks.prefix_lm(torch.tensor([4])), masks.not_(masks.dilated(3)))),
        create_block_mask(masks.parse("t:4,0"), None, None, 19, 19),
    ],
    ids=["causal", "window", "combined", "block"],
)
def test_masks_that_are_made_by_functions(tensors: list[torch.Tensor], mask: Any) -> None:
    """They have no name in a module, and are pickled by what they were made with; copies share them."""
    engine = AttentionEngine(ep.meta(), None, ep.Learned(), block_mask=mask)
    qkv = [tensor[:, :19] for tensor in tensors[:3]]
    for made in (pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(engine)))), copy.deepcopy(engine), copy.copy(engine)):
        assert torch.equal(made(*qkv), engine(*qkv))
    assert copy.deepcopy(engine)._arguments["block_mask"] is not None


def test_functions_without_a_name_are_named() -> None:
    engine = AttentionEngine(ep.meta(), score_mod=lambda s, c, b, h, q_idx, kv_idx: s)
    assert copy.deepcopy(engine)._functions[3] is engine._functions[3]
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"test_functions_without_a_name_are_named.<locals>.<lambda>"):
        pickle.dumps(engine)


def test_functions_that_are_modules_are_submodules(tensors: list[torch.Tensor]) -> None:
    engine = AttentionEngine(ep.meta(), None, ep.Learned(), ep.causal, online_func=ep.Mine(""))
    assert [name for name, _ in engine.named_parameters()] == ["score_mod.slope"]
    qkv = tensors[:3]
    torch.testing.assert_close(engine(*qkv).double(), expected(tensors, 0.1), rtol=1e-5, atol=1e-5)
    engine(*qkv).square().sum().backward()
    exact = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    (wanted,) = torch.autograd.grad(expected(tensors, exact).square().sum(), exact)
    torch.testing.assert_close(engine.get_parameter("score_mod.slope").grad, wanted.float(), rtol=1e-4, atol=1e-4)
    engine.load_state_dict({"score_mod.slope": torch.tensor(-0.2)})
    other = copy.deepcopy(engine)
    for made in (engine, other, pickle.loads(pickle.dumps(engine))):
        torch.testing.assert_close(made(*qkv).double(), expected(tensors, -0.2), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        other.get_parameter("score_mod.slope").fill_(0.3)
    torch.testing.assert_close(other(*qkv).double(), expected(tensors, 0.3), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(engine(*qkv).double(), expected(tensors, -0.2), rtol=1e-5, atol=1e-5)


def test_functions_are_not_replaced(tensors: list[torch.Tensor]) -> None:
    """Kernels are made for those that an engine was made with."""
    engine = AttentionEngine(ep.meta(), None, ep.Learned(), ep.causal, ep.Mine(""))  # in AttentionEngine's order
    for name, value in (("score_mod", ep.Learned()), ("mask_mod", None), ("key_mod", ep.doubled)):
        with pytest.raises(ArgumentError, match=f"{name} of an engine is fixed.*make another AttentionEngine"):
            setattr(engine, name, value)
    torch.testing.assert_close(engine(*tensors[:3]).double(), expected(tensors, 0.1), rtol=1e-5, atol=1e-5)


def plus_one(module: Any, inputs: Any, output: Any) -> Any:
    return output + 1


def test_hooks_run(tensors: list[torch.Tensor]) -> None:
    engine = ep.softmax_engine()
    engine.register_forward_hook(plus_one)
    torch.testing.assert_close(engine(*tensors), ep.softmax_engine()(*tensors) + 1)


def test_compiled_engines_are_not_taken_for_each_other(tensors: list[torch.Tensor]) -> None:
    """One compiled function serves engines whose programs differ."""
    qkv = tensors[:3]
    engines = [AttentionEngine(ep.meta(), None, ep.scaled, mask, online_func=ep.Mine("")) for mask in (None, ep.causal)]
    call = torch.compile(lambda engine, *tensors: engine(*tensors), fullgraph=True, backend="aot_eager")
    for engine in (*engines, pickle.loads(pickle.dumps(engines[1])), engines[0]):
        torch.testing.assert_close(call(engine, *qkv), engine(*qkv))
        torch.testing.assert_close(torch.compile(engine, fullgraph=True, backend="aot_eager")(*qkv), engine(*qkv))
    t = [qkv[i].transpose(1, 2) for i in (1, 1, 2)]
    decay = -torch.rand(1, 2, 19)
    for linear in (LinearAttentionEngine(ep.meta(2, 2)), ep.linear_engine()):
        torch.testing.assert_close(call(linear, *t, decay), linear(*t, decay))
