"""Values computed of captured tensors in every kind of function: current after every change, with gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import AttentionEngine, CustomIO, LinearAttentionEngine, OnlineFunc, OnlineSoftmax, SymbolScalar, Var, meta_tensor
from attn_mlir.errors import UnsupportedError

F64 = torch.float64
B, H, S, D = 1, 2, 6, 4
SIZES = (B, H, S, D)


class Learned:
    """A parameter that the functions of a test compute with, and its changes."""

    def __init__(self) -> None:
        self.t = torch.nn.Parameter(torch.tensor([0.5, 0.25], dtype=F64))

    def check(self, *both: Callable[[], torch.Tensor]) -> None:
        """Compares ways to compute the same, values and gradients, after each change."""
        for values in ((0.5, 0.25), (1.0, 0.5), (0.9, 0.1)):
            self.t.data.copy_(torch.tensor(values))
            wanted = both[-1]()
            (gradient,) = torch.autograd.grad(wanted.square().sum(), [self.t])
            for way in both[:-1]:
                o = way()
                torch.testing.assert_close(o, wanted)
                torch.testing.assert_close(torch.autograd.grad(o.square().sum(), [self.t])[0], gradient)


def grid(*sizes: int) -> list[torch.Tensor]:
    return [torch.arange(n).view([n if i == j else 1 for j in range(len(sizes))]) for i, n in enumerate(sizes)]


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.transpose(-1, -2)


def test_attention() -> None:
    learned, lens = Learned(), torch.tensor([4])
    t = learned.t
    q, k, v = torch.randn(3, *SIZES, dtype=F64)
    query_mod = lambda x, b, h, i, d: x * t.exp()[h]  # noqa: E731
    key_mod = lambda x, b, h, i, d: x * (t * 2)[h]  # noqa: E731
    value_mod = lambda x, b, h, i, d: x + t.mean()  # noqa: E731
    mask_mod = lambda b, h, i, j: j < lens.clamp(min=1)[b] if t[0] > 0.7 else j < lens.item() + 1  # noqa: E731

    def row(s: Any, b: Any, h: Any, i: Any) -> Any:
        p = torch.exp(s * t.sigmoid()[h])
        return p / p.sum(dim=-1, keepdim=True)

    functions = {"query_mod": query_mod, "key_mod": key_mod, "value_mod": value_mod, "mask_mod": mask_mod, "row": row}
    made = attn_mlir.Attention(**functions, scale=1.0)  # type: ignore[arg-type]

    def dense() -> torch.Tensor:
        s = scores(query_mod(q, *grid(*SIZES)), key_mod(k, *grid(*SIZES)))
        places = grid(B, H, S, S)
        masked = torch.where(mask_mod(*places), s, -1e4)
        return row(masked, *places[:3]) @ value_mod(v, *grid(*SIZES))

    for length in (4, 2):
        lens.fill_(length)
        learned.check(lambda: made(q, k, v), lambda: attn_mlir.attention(q, k, v, **functions, scale=1.0), dense)  # type: ignore[arg-type]


def test_linear_attention() -> None:
    learned = Learned()
    t = learned.t
    q, k, v = torch.randn(3, *SIZES, dtype=F64)
    decay = -torch.rand(B, H, S, dtype=F64)
    mods: dict[str, Any] = {
        "q_mod": lambda x, b, h, i, d: x * t.exp()[h],
        "k_mod": lambda x, b, h, i, d: x * 2 if t[0] > 0.7 else x,
        "v_mod": lambda x, b, h, i, d: x * t[0].item(),
        "decay_mod": lambda x, b, h, i: x * t.exp()[h],
    }
    skip = lambda b, h, i: (t * 2)[h]  # noqa: E731
    engine = LinearAttentionEngine((meta_tensor(*SIZES, dtype=F64),) * 3, **mods)

    def dense(skipped: bool) -> torch.Tensor:
        places = grid(*SIZES)
        summed = mods["decay_mod"](decay, *grid(B, H, S)).cumsum(-1)
        weight = torch.exp(torch.tril(summed[..., :, None] - summed[..., None, :])).tril()
        o = scores(mods["q_mod"](q, *places), mods["k_mod"](k, *places)) * weight @ mods["v_mod"](v, *places)
        return o + skip(*grid(B, H, S))[..., None] * v if skipped else o

    learned.check(lambda: engine(q, k, v, decay), lambda: attn_mlir.linear_attention(q, k, v, decay, **mods), lambda: dense(False))
    learned.check(lambda: attn_mlir.linear_attention(q, k, v, decay, **mods, skip_mod=skip), lambda: dense(True))


def test_engine() -> None:
    learned = Learned()
    t = learned.t

    class Gated(OnlineFunc):
        def __init__(self) -> None:
            super().__init__({"r": SymbolScalar("r", Var("0.0"))}, {"r": SymbolScalar("r", Var("1.0"))})

        @staticmethod
        def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
            weight = torch.sigmoid(scores * t.exp()[h])
            return weight, {"r": online_rowscales["r"] + weight.get_reduce("sum")}, SymbolScalar("o_scale", Var("1"))

        @staticmethod
        def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
            return o / (online_rowscales["r"] + t.mean()), {"r": online_rowscales["r"]}

    bias = torch.randn(1, H, S, S, dtype=F64)
    custom = CustomIO({"bias": (1, "heads", "seq_len", "seq_len_kv")})
    score_mod = lambda s, io, b, h, i, j: s + t.sum() * io.input_tensors["bias"]  # noqa: E731
    engine = AttentionEngine((meta_tensor(*SIZES, dtype=F64),) * 3, custom, score_mod, online_func=Gated())
    q, k, v = torch.randn(3, *SIZES, dtype=F64)

    def ours() -> torch.Tensor:
        return engine(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), bias).transpose(1, 2)

    def dense() -> torch.Tensor:
        weight = torch.sigmoid((scores(q, k) + t.sum() * bias) * t.exp()[:, None, None])
        return weight @ v / (weight.sum(-1, keepdim=True) + t.mean())

    learned.check(ours, dense)


def test_engines_inside_compile() -> None:
    """A number that decides something makes torch compile again; what would have to be read out of a tensor is refused."""
    q, k, v = torch.randn(3, B, S, H, D)
    table, n = torch.ones(3), 3
    meta = (meta_tensor(B, H, S, D, dtype=torch.float32),) * 3
    engine = AttentionEngine(meta, score_mod=lambda s, io, b, h, i, j: s * 2 if n > 3 else s * len(table), online_func=OnlineSoftmax())
    compiled = torch.compile(lambda q, k, v: engine(q, k, v), fullgraph=True, backend="aot_eager")
    for n, length in ((3, 3), (5, 3), (2, 4)):  # noqa: B007
        table = torch.ones(length)
        torch.testing.assert_close(compiled(q, k, v), engine(q, k, v))
    for score_mod in (lambda s, io, b, h, i, j: s * table[0].item(), lambda s, io, b, h, i, j: s * 2 if table[0] > 0.7 else s):
        other = AttentionEngine(meta, score_mod=score_mod, online_func=OnlineSoftmax())
        with pytest.raises(Exception, match="must be computed before the call") as error:
            torch.compile(lambda q, k, v, other=other: other(q, k, v), fullgraph=True, backend="aot_eager")(q, k, v)
        assert isinstance(error.value, UnsupportedError) or "UnsupportedError" in str(error.value)


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def test_values_computed_of_captures_inside_compile() -> None:
    """As `attention` there: they are part of the graph, current at each call, with gradients."""
    learned = Learned()
    t, n = learned.t, 2.0

    def score_mod(s: Any, io: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        with torch.no_grad():
            constant = t.sum(dim=0, keepdim=True)
        return s * torch.stack([t.exp(), t[:2] * n]).mean(0)[h] + torch.nn.functional.softplus(t, beta=2)[0] - constant[0]

    engine = AttentionEngine((meta_tensor(*SIZES, dtype=F64),) * 3, score_mod=score_mod, online_func=OnlineSoftmax())
    q, k, v = torch.randn(3, B, S, H, D, dtype=F64)
    graph = compiled(lambda q, k, v: engine(q, k, v))

    def dense() -> torch.Tensor:
        moved = scores(q.transpose(1, 2), k.transpose(1, 2)) * ((t.exp() + t * n) / 2)[:, None, None]
        weight = (moved + torch.nn.functional.softplus(t, beta=2)[0] - t.detach().sum()).softmax(-1)
        return (weight @ v.transpose(1, 2)).transpose(1, 2)

    learned.check(lambda: graph(q, k, v), lambda: engine(q, k, v), dense)


def test_values_computed_of_captures_of_linear_engines_inside_compile() -> None:
    learned = Learned()
    t = learned.t
    engine = LinearAttentionEngine(
        (meta_tensor(*SIZES, dtype=F64),) * 3,
        q_mod=lambda x, io, b, h, i: x * t.exp()[h],
        decay_mod=lambda g, io, b, h, i: g * t.abs().sum(),
    )
    q, k, v = torch.randn(3, *SIZES, dtype=F64)
    g = -torch.rand(B, H, S, dtype=F64)
    graph = compiled(lambda q, k, v, g: engine(q, k, v, g))
    learned.check(lambda: graph(q, k, v, g), lambda: engine(q, k, v, g))


def test_what_a_graph_cannot_read_is_told() -> None:
    class Scale:
        factors = Learned().t

    scale = Scale()
    engine = AttentionEngine(
        (meta_tensor(*SIZES, dtype=F64),) * 3, score_mod=lambda s, io, b, h, i, j: s * scale.factors.exp()[h], online_func=OnlineSoftmax()
    )
    q, k, v = torch.randn(3, B, S, H, D, dtype=F64)
    assert engine(q, k, v).isfinite().all()
    with pytest.raises(Exception, match="variables of the function itself, or before the call: pass it as a tensor of custom_fwd_inputs"):
        compiled(lambda q, k, v: engine(q, k, v))(q, k, v)


def test_changes_in_place_inside_compile() -> None:
    q, k, v = torch.randn(3, *SIZES)
    t = torch.tensor([0.5, 0.25])

    def refused(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        x = t.clone()
        x.mul_(2)
        return s * x[h]

    def taken(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        x = t * 2
        x += 1
        s += torch.where((t[h] > 0) & (i >= 0) | (j < 0), x[h], 0.0)
        return s * t.clone().mul_(3)[h]

    compiled = torch.compile(lambda mod: attn_mlir.attention(q, k, v, score_mod=mod), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="changes a tensor in place"):
        compiled(refused)
    for value in (0.5, 1.5):
        t.fill_(value)
        s = taken(scores(q, k) * D**-0.5, *grid(B, H, S, S))
        torch.testing.assert_close(compiled(taken), torch.softmax(s, -1) @ v)
