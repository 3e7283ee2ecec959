"""torch.export, strict or not; what runs elsewhere, saved graphs and AOTInductor's packages, is in test_ahead_operators.py."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.export import Dim

from attn_mlir import ArgumentError, AttentionEngine, OnlineSoftmax, UnsupportedError, attention, linear_attention, masks, meta_tensor
from attn_mlir.runtime import schemas

TABLE = torch.tensor([0.1, -0.2])
DYNAMIC = ({0: Dim("batch"), 2: Dim("length")},) * 3
ENGINE = AttentionEngine(
    tuple(meta_tensor("B", 2, "S", 8, dtype=torch.float32) for _ in range(3)),
    score_mod=lambda s, c, b, h, i, j: s * 0.4 + TABLE[h],
    mask_mod=masks.causal(),
    online_func=OnlineSoftmax(),
)


def qkv(b: int = 2, length: int = 17) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = torch.randn(3, b, 2, length, 8)
    return q, k, v


class Model(torch.nn.Module):
    """Attentions whose functions read parameters, buffers, numbers, lengths, and what is computed of them."""

    def __init__(self, trained: bool = True) -> None:
        super().__init__()
        self.slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25]), requires_grad=trained)
        self.bias: torch.Tensor
        self.register_buffer("bias", torch.tensor([0.3, -0.7]))
        self.window, self.factor = 3, 0.4

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        offset, rates, factor, window = k.shape[2] - q.shape[2], self.slopes.exp(), self.factor, self.window

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s * factor + rates[h] * (j - i) + self.bias[h] + self.slopes[h] * TABLE[h]

        plain = attention(q, k, v)
        first, lse = attention(
            q, k, v, score_mod=score_mod, mask_mod=lambda b, h, i, j: (i + offset - j).abs() <= window, scale=0.3, return_lse=True
        )
        second, state = linear_attention(q, k, v, -rates, q_mod=lambda x: x * self.factor, output_final_state=True)
        turned = ENGINE(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)).transpose(1, 2)
        return plain + first + second, turned, lse, state


def compare(got: Any, wanted: Any) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("strict", "trained"), [(False, False), (False, True), (True, True)])
def test_export(strict: bool, trained: bool) -> None:
    model = Model(trained)
    exported: Any = torch.export.export(model, qkv(), strict=strict, dynamic_shapes=DYNAMIC).module()
    for b, length in ((2, 17), (3, 40), (2, 1), (2, 0)):
        tensors = qkv(b, length)
        compare(exported(*tensors), model(*tensors))
    with torch.no_grad():
        for module in (model, exported):
            module.slopes.fill_(-0.4)
            module.bias.fill_(0.2)
    tensors = qkv()
    compare(exported(*tensors), model(*tensors))
    if trained:
        gradients = []
        for module in (model, exported):
            loss = torch.stack([result.square().sum() for result in module(*tensors)]).sum()
            gradients += torch.autograd.grad(loss, module.slopes)
        torch.testing.assert_close(*gradients)


def test_functions_that_were_called_before_and_after() -> None:
    """Nothing of a graph's stand-ins is kept for later calls."""
    bias = torch.tensor([0.5, -0.5])

    class Global(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h] * j)

    model, tensors = Global(), qkv()
    before = model(*tensors)
    exported: Any = torch.export.export(model, tensors).module()
    assert torch.equal(exported(*tensors), before)
    bias.mul_(2)
    assert torch.equal(model(*tensors), attention(*tensors, score_mod=lambda s, b, h, i, j: s + bias[h] * j))
    assert not torch.equal(model(*tensors), before)


def test_gradients_that_a_graph_does_not_have_are_refused() -> None:
    """torch would take them for zeros."""
    q, k, v = qkv()
    exported: Any = torch.export.export(Model(), (q, k, v)).module()  # just the parameter needs one
    exported(q, k, v)[0].sum().backward()
    with pytest.raises(UnsupportedError, match="a gradient of q, v is asked for, but this graph was made where it was not needed"):
        exported(q.requires_grad_(), k, v.requires_grad_())[0].sum().backward()
    with torch.no_grad():
        exported = torch.export.export(Model(), (q, k, v)).module()
    with pytest.raises(UnsupportedError, match="outside of torch"):
        exported(q, k, v)[0].sum().backward()


@pytest.mark.parametrize("function", [attention, linear_attention, lambda *tensors: ENGINE(*[x.transpose(1, 2) for x in tensors])])
def test_jit_trace_is_refused(function: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"torch\.jit\.trace cannot record attention: use torch\.export"):
        torch.jit.trace(function, qkv())


def test_fake_tensors_reach_no_kernel() -> None:
    with torch._subclasses.FakeTensorMode():
        q, k, v = torch.randn(3, 2, 2, 17, 8)
        o, lse = attention(q, k, v, mask_mod=masks.causal(), return_lse=True, layout="bshd")
    assert (type(o).__name__, o.shape, o.stride(), lse.shape) == ("FakeTensor", q.shape, q.stride(), (2, 17, 2))


def test_shapes_that_do_not_go_together_are_refused_by_the_operator() -> None:
    """Packages of AOTInductor check none."""
    q, k, v = qkv()
    name = next(node.args[6] for node in torch.export.export(Model(), (q, k, v)).graph.nodes if "attn_mlir.forward" in str(node.target))
    with pytest.raises(ValueError, match=r"which do not go together"):
        schemas.OPERATORS["forward"](q, k[:, :, :5], v, [], None, None, name, "", "bhsd")


@pytest.mark.parametrize("change", [torch.Tensor.double, torch.Tensor.half, lambda t: t[None]])
def test_buffers_of_another_type_are_refused_by_the_operator(change: Any) -> None:
    """Kernels read memory as what the graph was made for."""

    class Biased(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias: torch.Tensor
            self.register_buffer("bias", torch.tensor([0.3, -0.7]))

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + self.bias[h] * j)

    tensors = qkv()
    exported: Any = torch.export.export(Biased(), tensors).module()
    exported.register_buffer("bias", change(exported.get_buffer("bias")))
    with pytest.raises(ArgumentError, match="but this graph was made for"):
        exported(*tensors)


def test_operators_are_there_where_torch_came_first() -> None:
    code = "import torch, attn_mlir, sys; print(torch.ops.attn_mlir.forward.default, 'attn_mlir.mlir' in sys.modules)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["attn_mlir.forward.default", "False"]
