"""`torch.autograd.Function` in the functions of an attention: its own backward is the derivative, against torch's."""

import threading
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable

import attn_mlir
from flex_dense import compare, qkv

Function: Any = torch.autograd.Function  # so that its subclasses are not checked against each other
SCALE = 0.5


class Straight(Function):
    """tanh, through which gradients pass unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class Leaky(Function):
    """x^2 y for saved values, with derivatives that are not its own; `scale` is read each time in both."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, power: int = 2) -> Any:
        ctx.save_for_backward(x, y)
        ctx.power = power
        return x**power * y * SCALE

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * torch.sin(x) * y * SCALE, g * x * ctx.power, None


class Masked(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Any, mask: Any) -> Any:
        return torch.where(mask, a, -torch.inf)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(inputs[1])

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g, None


class Two(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x, x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3.0 * g * x - h


class Rounded(Function):
    """On whole tensors, too."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2.0 * g


leaky = Leaky.apply  # as it is often written
ROWS, COLUMNS = torch.arange(9)[:, None], torch.arange(9)
TABLE = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.7]))


def two(x: Any) -> Any:
    first, second = Two.apply(x)
    return torch.sin(first) + 0.1 * second


CASES: dict[str, Any] = {
    "straight": lambda s, h, m, n, table: Straight.apply(s),
    "captured": lambda s, h, m, n, table: s + Straight.apply(table[h]) * (m - n),
    "whole": lambda s, h, m, n, table: s + Rounded.apply(3.0 * table)[h] * (m - n),
    "several": lambda s, h, m, n, table: leaky(s, table[h]),
    "power": lambda s, h, m, n, table: Leaky.apply(s, table[h] * (m - n), 3),
    "nested": lambda s, h, m, n, table: Straight.apply(leaky(s, s - 1.0)) + s,
    "context": lambda s, h, m, n, table: Masked.apply(s * table[h], m >= n),
    "outputs": lambda s, h, m, n, table: two(s * table[h]),
}


def _dense(q: Any, k: Any, v: Any, table: Any, case: Any) -> Any:
    heads = torch.arange(4)[:, None, None]
    scores = case(q @ k.mT * q.shape[-1] ** -0.5, heads, ROWS, COLUMNS, table)
    return scores.softmax(-1) @ v


def _attend(q: Any, k: Any, v: Any, table: Any, case: Any) -> Any:
    return attn_mlir.flex_attention(q, k, v, lambda s, b, h, m, n: case(s, h, m, n, table))


dense: Any = _dense  # callers pass inputs by *
attend: Any = _attend


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(name: str) -> None:
    inputs = [x.double().requires_grad_() for x in (*qkv(sq=9, d=8), TABLE.detach())]
    for _ in range(2):  # traced, and called again
        o, wanted = attend(*inputs, CASES[name]), dense(*inputs, CASES[name])
        compare(o, wanted, 1e-12)
        upstream = torch.randn_like(o)
        theirs = torch.autograd.grad(wanted, inputs, upstream, allow_unused=True, materialize_grads=True)
        mine = torch.autograd.grad(o, inputs, upstream, allow_unused=True, materialize_grads=True)
        for a, b in zip(mine, theirs, strict=True):
            compare(a, b, 1e-9)
        with torch.no_grad():
            inputs[-1].mul_(-0.5)


@pytest.mark.parametrize("name", ["straight", "captured", "several", "nested", "context"])
def test_second_derivatives(name: str) -> None:
    inputs = [x.double().requires_grad_() for x in (*qkv(b=1, sq=9, d=4), TABLE.detach())]
    upstream = torch.randn(1, 4, 9, 4, dtype=torch.float64)
    directions = [torch.randn_like(x) for x in inputs]
    found = []
    for function in (attend, dense):
        first = torch.autograd.grad(function(*inputs, CASES[name]), inputs, upstream, create_graph=True, materialize_grads=True)
        total: Any = sum((g * d).sum() for g, d in zip(first, directions, strict=True))
        found.append(torch.autograd.grad(total, inputs, materialize_grads=True))
    for a, b in zip(*found, strict=True):
        compare(a, b, 1e-8)


@pytest.mark.parametrize("name", ["straight", "captured", "whole", "several", "outputs"])
def test_inside_torch_compile(name: str) -> None:
    """Where only q, k and v need gradients, too: dynamo takes a Function of what needs none for its forward alone."""
    inputs = [x.requires_grad_() for x in qkv(sq=9, d=8)]
    compiled = torch.compile(lambda *inputs: attend(*inputs, CASES[name]), fullgraph=True, backend="aot_eager")
    for table in (TABLE.detach(), TABLE):
        o, wanted = compiled(*inputs, table), dense(*inputs, table, CASES[name])
        compare(o, wanted.double())
        given = [x for x in (*inputs, table) if x.requires_grad]
        upstream = torch.randn_like(o)
        theirs = torch.autograd.grad(wanted, given, upstream, materialize_grads=True, allow_unused=True)
        for a, b in zip(torch.autograd.grad(o, given, upstream, materialize_grads=True, allow_unused=True), theirs, strict=True):
            compare(a, b.double(), 1e-4)


def test_tangents() -> None:
    """Forward mode has no rule of the Function's own; it is the one that backward gives."""
    q, k, v = (x.double() for x in qkv(sq=9, d=8))
    jvp: Any = torch.func.jvp
    _, tangent = jvp(lambda q: attend(q, k, v, TABLE.detach().double(), CASES["straight"]), (q,), (torch.ones_like(q),))
    scores = (q @ k.mT * 8**-0.5).tanh()
    moved = torch.ones_like(q) @ k.mT * 8**-0.5
    compare(tangent, jvp(lambda s: s.softmax(-1) @ v, (scores,), (moved,))[1], 1e-9)


def test_rows_elements_and_linear_attention() -> None:
    q, k, v = (x.double().requires_grad_() for x in qkv(sq=9, d=8))

    def normalised(s: Any) -> Any:
        w = Straight.apply(s) ** 2
        return w / (w.sum(-1, keepdim=True) if isinstance(s, torch.Tensor) else w.sum())

    o = attn_mlir.attention(q, k, v, row=normalised, query_mod=lambda x, b, h, i, d: leaky(x, x + 1.0), scale=1.0)
    wanted = normalised(leaky(q, q + 1.0) @ k.mT) @ v
    compare(o, wanted, 1e-9)
    for a, b in zip(torch.autograd.grad(o.sin().sum(), (q, k, v)), torch.autograd.grad(wanted.sin().sum(), (q, k, v)), strict=True):
        compare(a, b, 1e-9)
    gates = torch.rand(4, dtype=torch.float64, requires_grad=True)
    o = attn_mlir.linear_attention(q, k, v, decay_mod=lambda g, b, h, t: -Straight.apply(gates[h]), scale=1.0)
    distance = (ROWS - COLUMNS).double()
    weights = torch.where(distance >= 0, (-distance * Straight.apply(gates)[:, None, None]).exp(), 0.0)
    wanted = (q @ k.mT * weights) @ v
    compare(o, wanted, 1e-5)
    inputs = (q, k, v, gates)
    for a, b in zip(torch.autograd.grad(o.sin().sum(), inputs), torch.autograd.grad(wanted.sin().sum(), inputs), strict=True):
        compare(a, b, 1e-4)


def test_what_they_read_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (x.double().requires_grad_() for x in qkv(sq=9, d=8))
    table = TABLE.detach().double()
    for scale in (0.5, 1.5, 0.5):
        monkeypatch.setitem(globals(), "SCALE", scale)
        o, wanted = (function(q, k, v, table, CASES["several"]) for function in (attend, dense))
        compare(o, wanted, 1e-12)
        compare(torch.autograd.grad(o.sum(), q)[0], torch.autograd.grad(wanted.sum(), q)[0], 1e-9)


@torch.library.custom_op("attn_mlir_test::cubed", mutates_args=())
def cubed(x: torch.Tensor) -> torch.Tensor:
    return x * Straight.apply(x) * x


def _keep(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


cubed.register_autograd(lambda ctx, grad: 3 * grad * ctx.saved_tensors[0] ** 2, setup_context=_keep)


def test_custom_operators_of_captured_tensors() -> None:
    """torch makes a Function for each; an attention within a function is such an operator, too."""
    q, k, v = (x.requires_grad_() for x in qkv(sq=9, d=8))
    gate = torch.rand(q.shape[1], requires_grad=True)
    of_attention = (lambda: gate * attn_mlir.attention(q, k, v).mean(), gate * ((q @ k.mT / 8**0.5).softmax(-1) @ v).mean())
    for factor, dense in ((lambda: cubed(gate), cubed(gate)), of_attention):
        o = attn_mlir.attention(q, k, v, score_mod=lambda s, b, h, i, j, factor=factor: s * factor()[h])
        wanted = (q @ k.mT / 8**0.5 * dense[:, None, None]).softmax(-1) @ v
        compare(o, wanted, 1e-5)
        inputs = (q, k, v, gate)
        for a, b in zip(torch.autograd.grad(o.sin().sum(), inputs), torch.autograd.grad(wanted.sin().sum(), inputs), strict=True):
            compare(a, b, 1e-4)


def test_other_threads_have_torchs() -> None:
    """While one thread traces, others call Functions on tensors."""
    stop, wrong = threading.Event(), []

    def work() -> None:
        x = torch.ones(3, requires_grad=True)
        while not stop.is_set():
            (grad,) = torch.autograd.grad(Rounded.apply(x).sum(), x)
            wrong.extend([grad] if not torch.equal(grad, torch.full((3,), 2.0)) else [])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for i in range(3):
            attn_mlir.attention(*qkv(sq=9, d=8), score_mod=lambda s, b, h, m, n, i=i: Straight.apply(s * i) + i)
    finally:
        stop.set()
        thread.join()
    assert not wrong and "apply" not in vars(torch.autograd.function._SingleLevelFunction)


class Clipped(Straight):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.clamp(-1.0, 1.0)


class Short(Leaky):
    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class Indexed(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, table: Any) -> Any:
        ctx.save_for_backward(table)
        return x * table[0]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0][0], g


class Without(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x


REFUSED: dict[str, Any] = {
    "Clipped.backward is not linear": lambda s, h, table: Clipped.apply(s),
    "Short.backward returned 1 gradients for 2": lambda s, h, table: Short.apply(s, table[h]),
    "Without has no backward": lambda s, h, table: Without.apply(s),
    "a gradient of a tensor of 1 dimensions": lambda s, h, table: Indexed.apply(s, table),
}


@pytest.mark.parametrize("told", REFUSED)
def test_what_is_refused(told: str) -> None:
    case = REFUSED[told]
    with pytest.raises(attn_mlir.TraceError, match=told):
        attn_mlir.attention(*qkv(sq=9), score_mod=lambda s, b, h, m, n: case(s, h, TABLE))
