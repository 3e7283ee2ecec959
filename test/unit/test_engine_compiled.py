"""Engines inside torch.compile, where dynamo does not see their functions, and calls that several threads make at once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from attn_mlir import ArgumentError, AttentionEngine, CustomIO, LinearAttentionEngine, OnlineSoftmax, create_block_mask, meta_tensor

B, H, S, D = 1, 4, 17, 16
META = (meta_tensor(B, H, "S", D, dtype=torch.float32),) * 3
Change = Callable[[], Any]

flag, mode, table, other, helper = True, "weak", torch.ones(H), torch.ones(H), None
items = [0.5]


class Gain:
    def __init__(self) -> None:
        self.gain = 0.5

    def __call__(self, s: Any, io: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * self.gain


gain = Gain()


def times(factor: float) -> Callable[..., Any]:
    factors = torch.full((H,), factor)
    return lambda h: factors[h] * factor


def become(**values: Any) -> Change:
    return lambda: globals().update(values)


def softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, factor: float) -> torch.Tensor:
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    return ((q @ k.mT * factor).softmax(-1) @ v).transpose(1, 2)


def linear(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """By pairs; `decay` is [B, H, S]."""
    sums = decay.double().cumsum(-1)
    weight = (sums[..., :, None] - sums[..., None, :]).exp().tril()
    return (q.double() @ k.double().mT * weight) @ v.double()


def compiled(engine: Any) -> Any:
    return torch.compile(lambda q, k, v: engine(q, k, v), fullgraph=True, backend="aot_eager")


def test_one_graph_is_not_taken_for_two_engines() -> None:
    """Also where only constants in their functions differ; equal engines share a graph."""
    q, k, v = torch.randn(3, B, S, H, D)
    functions = [lambda s, io, b, h, i, j: s * 0.1, lambda s, io, b, h, i, j: s * 0.9]
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(lambda engine, *inputs: engine(*inputs), fullgraph=True, backend=counter)
    for _ in range(2):
        for function, factor in zip(functions, (0.1, 0.9), strict=True):
            engine = AttentionEngine(META, score_mod=function, online_func=OnlineSoftmax())
            torch.testing.assert_close(run(engine, q, k, v).double(), softmax(q, k, v, factor), rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 2
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    decay = -torch.rand(B, H, S)
    for factor in (0.5, 2.0):
        engine = LinearAttentionEngine(META, q_mod=(lambda x: x * 0.5) if factor == 0.5 else (lambda x: x * 2.0))
        torch.testing.assert_close(run(engine, q, k, v, decay).double(), linear(q * factor, k, v, decay), rtol=1e-4, atol=1e-4)


HALF, QUARTER = torch.full((H,), 0.5), torch.full((H,), 0.25)
CASES: dict[str, tuple[Any, list[tuple[Change, float]]]] = {
    "a condition": (lambda s, io, b, h, i, j: s * 0.1 if flag else s * 0.9, [(become(flag=True), 0.1), (become(flag=False), 0.9)]),
    "a string": (lambda s, io, b, h, i, j: s * 0.1 if mode == "weak" else s, [(become(mode="weak"), 0.1), (become(mode=""), 1.0)]),
    "a function": (
        lambda s, io, b, h, i, j: s * helper(h),  # type: ignore[misc]
        [(become(helper=times(0.5)), 0.25), (become(helper=times(0.25)), 0.0625), (become(helper=lambda h: 0.3), 0.3)],
    ),
    "an attribute": (gain, [(lambda: setattr(gain, "gain", 0.5), 0.5), (lambda: setattr(gain, "gain", 0.9), 0.9)]),
    "a list": (
        lambda s, io, b, h, i, j: s * items[0],
        [(lambda: items.__setitem__(0, 0.5), 0.5), (lambda: items.__setitem__(0, 0.9), 0.9)],
    ),
    "one tensor that becomes two": (
        lambda s, io, b, h, i, j: s * table[h] + s * other[h],
        [(become(table=HALF, other=HALF), 1.0), (become(table=HALF, other=QUARTER), 0.75), (become(table=QUARTER, other=HALF), 0.75)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_shapes_a_trace_makes_torch_compile_again(name: str) -> None:
    function, steps = CASES[name]
    steps[0][0]()
    engine = AttentionEngine(META, score_mod=function, online_func=OnlineSoftmax())
    run, (q, k, v) = compiled(engine), torch.randn(3, B, S, H, D)
    for change, factor in (*steps, steps[0]):
        change()
        torch.testing.assert_close(run(q, k, v).double(), softmax(q, k, v, factor), rtol=1e-4, atol=1e-5)


def test_a_block_mask_of_a_call_is_not_ignored() -> None:
    engine = AttentionEngine(META, mask_mod=lambda b, h, i, j: i >= j, online_func=OnlineSoftmax())
    mask = create_block_mask(lambda b, h, i, j: i <= j, B, H, S, S)
    q, k, v = torch.randn(3, B, S, H, D)
    run = torch.compile(lambda q, k, v: engine(q, k, v, block_mask=mask), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="takes no block mask with the call"):
        run(q, k, v)


def test_calls_of_an_engine_do_not_disturb_each_other() -> None:
    """A call that another thread makes in the midst of one, with another dtype or another form of the decay."""

    class Interrupted(AttentionEngine):
        def _find(self, *arguments: Any, **options: Any) -> Any:
            interrupt.pop()() if interrupt else None
            return super()._find(*arguments, **options)

    class LinearInterrupted(LinearAttentionEngine):
        def _find(self, *arguments: Any, **options: Any) -> Any:
            interrupt.pop()() if interrupt else None
            return super()._find(*arguments, **options)

    interrupt: list[Change] = []
    q, k, v = torch.randn(3, B, S, H, D)
    engine = Interrupted(
        META, CustomIO({"g": ("batch",)}), lambda s, io, b, h, i, j: s * io.input_tensors["g"], online_func=OnlineSoftmax()
    )
    interrupt.append(lambda: engine(q, k, v, torch.tensor([2])))
    torch.testing.assert_close(engine(q, k, v, torch.tensor([0.3])).double(), softmax(q, k, v, 0.3), rtol=1e-4, atol=1e-5)
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    decay, second = -torch.rand(B, H, S), LinearInterrupted(META)
    interrupt.append(lambda: second(q, k, v, -torch.rand(B, H, S, D)))
    torch.testing.assert_close(second(q, k, v, decay).double(), linear(q, k, v, decay), rtol=1e-4, atol=1e-4)


def test_an_engine_keeps_the_declaration_that_it_was_made_with() -> None:
    """A CustomIO that is changed later would say other dimensions than those that were traced."""
    declared = CustomIO({"g": ("heads",)})
    engine = AttentionEngine(META, declared, lambda s, io, b, h, i, j: s * io.input_tensors["g"], online_func=OnlineSoftmax())
    q, k, v = torch.randn(3, B, S, H, D)
    declared.input_tensors.update(CustomIO({"g": ("batch",), "more": (1,)}).input_tensors)
    torch.testing.assert_close(engine(q, k, v, torch.full((H,), 0.3)).double(), softmax(q, k, v, 0.3), rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match='"heads" is 4 in this call'):
        engine(q, k, v, torch.full((B,), 0.3))
