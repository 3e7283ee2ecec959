"""Tangents of attentions on the CPU: rows with several scores, weights and outputs, against torch.func.jvp in float64."""

from pathlib import Path

import pytest
import torch

from attn_mlir.backends.cpu.program import compile_derivative, compile_program
from row_cases import CASES
from rows import DIM, module_text
from torch_rows import Captured, T

ROWS = ["softmax", "sigmoid", "relu normalised", "retention", "l2", "mean-centred softmax", "layer norm", "softmax with sink", "entropy"]
DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
TOLERANCE = {"f64": 1e-11, "f32": 2e-5, "bf16": 3e-2, "f16": 4e-3}
TANGENT = Path(__file__).parent.parent / "Inputs" / "derivatives" / "softmax-tangent.mlir"


def tensors(length, keys, dtype, heads=(4, 2)):
    torch.manual_seed(length + keys)
    q = torch.randn(2, heads[0], length, DIM)
    k, v = (torch.randn(2, heads[1], keys, DIM) for _ in range(2))
    return [x.to(DTYPES[dtype]) for x in (q, k, v)]


def dense(rule, q, k, v, t):
    """o and the row outputs of a row function under a causal mask."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.transpose(-1, -2)
    present = (torch.arange(q.shape[2])[:, None] >= torch.arange(k.shape[2])).expand(s.shape)
    got = rule(T(s, present, Captured(t)))
    p, *outputs = got if isinstance(got, tuple) else (got,)
    o = p.value.expand(s.shape).where(present, 0.0) @ v
    return [o, *[x.value[..., 0] for x in outputs]]


def error(got, wanted):
    assert got.shape == wanted.shape
    assert got.isfinite().all()
    return ((got.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-3)).item()


def interleaved(primals, tangents):
    """o, o_dot, then the row outputs and their tangents."""
    return [primals[0], tangents[0], *primals[1:], *tangents[1:]]


@pytest.mark.parametrize("dtype", ["f64", "f32"])
@pytest.mark.parametrize("name", ROWS)
def test_tangent_of_a_row(name, dtype):
    case = CASES[name]
    text = module_text(case.rule, case.outputs, dtype)
    inputs = [*tensors(37, 37, dtype), torch.tensor([0.7, 1.3, -0.4, 0.2], dtype=DTYPES[dtype])]
    dots = [torch.randn_like(x) for x in inputs]
    got = compile_derivative(text, "jvp", ["q", "k", "v", "arg3"]).run([*inputs, *dots])
    double = [[x.double() for x in of] for of in (inputs, dots)]
    wanted = torch.func.jvp(lambda *x: tuple(dense(case.rule, *x)), *map(tuple, double))
    for x, y in zip(got, interleaved(*wanted), strict=True):
        # Rows with one key have no variance.
        assert error(x[:, :, 2:], y[:, :, 2:]) < TOLERANCE[dtype]


def softmax_tangent(inputs):
    q, k, v, *dots = [x.double() for x in inputs]
    return torch.func.jvp(lambda q, k, v: (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v, (q, k, v), tuple(dots))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [(1, 1), (37, 70), (64, 129)])
def test_softmax_tangent(lengths, dtype):
    """The hand-written program, without a mask, in every type."""
    text = TANGENT.read_text().replace("f32>", f"{dtype}>")
    if dtype == "f64":
        text = text.replace("f32", "f64")
    torch.manual_seed(3)
    shapes = [(lengths[0], 64), (lengths[1], 64), (lengths[1], 32)] * 2
    inputs = [torch.randn(2, 3, *shape).to(DTYPES[dtype]) for shape in shapes]
    got = compile_program(text, "attention_jvp").run(inputs)
    for x, y in zip(got, softmax_tangent(inputs), strict=True):
        assert x.dtype == DTYPES[dtype]
        assert error(x, y) < TOLERANCE[dtype]


def masked_tangent(dtype="f32", strict="sgt"):
    mask = f"""    "attn.mask"() ({{
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi {strict}, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }}) : () -> ()
"""
    return TANGENT.read_text().replace('    "attn.score"() ({\n', f'{mask}    "attn.score"() ({{\n')


def test_masked_keys_of_a_tangent_do_not_matter():
    """NaN in a masked key, or its tangent, is left out; the first row sees no key and is zero."""
    torch.manual_seed(4)
    inputs = [torch.randn(1, 2, 20, d) for d in (64, 64, 32, 64, 64, 32)]
    program = compile_program(masked_tangent(), "attention_jvp")
    wanted = program.run(inputs)
    for o in wanted:
        assert (o[:, :, 0] == 0).all()
        assert o.isfinite().all()
    for k in (1, 4):
        inputs[k][:, :, 15:] = torch.nan
    for x, y in zip(program.run(inputs), wanted, strict=True):
        assert torch.equal(x[:, :, :15], y[:, :, :15])


def test_outputs_in_another_order_or_left_out():
    text = TANGENT.read_text()
    signature = "(tensor<?x?x?x32xf32>, tensor<?x?x?x32xf32>)"
    swapped = text.replace("return %o, %o_dot", "return %o_dot, %o")
    alone = text.replace(signature, "tensor<?x?x?x32xf32>").replace("return %o, %o_dot : tensor<?x?x?x32xf32>, ", "return %o_dot : ")
    torch.manual_seed(5)
    inputs = [torch.randn(1, 2, 20, d) for d in (64, 64, 32, 64, 64, 32)]
    o, o_dot = compile_program(text, "attention_jvp").run(inputs)
    assert all(torch.equal(x, y) for x, y in zip(compile_program(swapped, "attention_jvp").run(inputs), (o_dot, o), strict=True))
    (only,) = compile_program(alone, "attention_jvp").run(inputs)
    assert torch.equal(only, o_dot)
