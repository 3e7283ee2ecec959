"""Attentions with further products, terms and outputs on the CPU, against float64 formulas."""

import math
import re

import pytest
import torch

from attn_mlir.backends.cpu.program import compile_program
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import evaluate
from attn_mlir.registry import registry
from rows import parse

DTYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
TOLERANCE = {"f64": 1e-13, "f32": 2e-6, "bf16": 8e-3, "f16": 1e-3}

# o = p v, and the sum of the gradient of the scores times k, which o's adjoint makes.
GRADIENT = """
func.func @attention(%q: tensor<?x?x?x24xT>, %k: tensor<?x?x?x24xT>, %v: tensor<?x?x?x16xT>, %do: tensor<?x?x?x16xT>)
    -> (tensor<?x?x?x16xT>, tensor<?x?x?x24xT>, tensor<?x?x?xS>) {
  %o, %row = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%do, %v) : (tensor<?x?x?x16xT>, tensor<?x?x?x16xT>) -> ()
    "attn.term"(%k) {output = 1 : i64} : (tensor<?x?x?x24xT>) -> ()
    MODS
    "attn.row"() ({
    ^bb0(%s: S, %dp: S, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (S) -> S
      %x = arith.subf %s, %m : S
      %e = math.exp %x : S
      %l = "attn.reduce"(%e) {kind = "sum"} : (S) -> S
      %p = arith.divf %e, %l : S
      %p_dp = arith.mulf %p, %dp : S
      %delta = "attn.reduce"(%p_dp) {kind = "sum"} : (S) -> S
      %centred = arith.subf %dp, %delta : S
      %ds = arith.mulf %p, %centred : S
      "attn.yield"(%p, %ds, %delta) : (S, S, S) -> ()
    }) : () -> ()
  }) {outputs = ["delta"]} : (tensor<?x?x?x24xT>, tensor<?x?x?x24xT>, tensor<?x?x?x16xT>) -> (tensor<?x?x?x16xT>, tensor<?x?x?xS>)
  %dq = "attn.output"(%o) {index = 1 : i64} : (tensor<?x?x?x16xT>) -> tensor<?x?x?x24xT>
  return %o, %dq, %row : tensor<?x?x?x16xT>, tensor<?x?x?x24xT>, tensor<?x?x?xS>
}
"""
# Sums along the rows of another attention, whose largest scores and sums are given.
ROWS = """
func.func @attention(%q: tensor<?x?x?x24xf32>, %k: tensor<?x?x?x24xf32>, %v: tensor<?x?x?x16xf32>, %do: tensor<?x?x?x16xf32>,
    %m: tensor<?x?x?xf32>, %l: tensor<?x?x?xf32>) -> (tensor<?x?x?xf32>, tensor<?x?x?x16xf32>) {
  %o, %row = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%do, %v) : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sgt, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %dp: f32, %b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      %row_max = tensor.extract %m[%b, %h, %q_idx] : tensor<?x?x?xf32>
      %row_sum = tensor.extract %l[%b, %h, %q_idx] : tensor<?x?x?xf32>
      %x = arith.subf %s, %row_max : f32
      %e = math.exp %x : f32
      %p = arith.divf %e, %row_sum : f32
      %p_dp = arith.mulf %p, %dp : f32
      %delta = "attn.reduce"(%p_dp) {kind = "sum"} : (f32) -> f32
      "attn.yield"(%zero, %delta) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["delta"]} : (tensor<?x?x?x24xf32>, tensor<?x?x?x24xf32>, tensor<?x?x?x16xf32>) -> (tensor<?x?x?x16xf32>, tensor<?x?x?xf32>)
  return %row, %o : tensor<?x?x?xf32>, tensor<?x?x?x16xf32>
}
"""


def mod(name, expression):
    return f""""attn.{name}"() ({{
    ^bb0(%x: S, %b: index, %h: index, %position: index, %d: index):
      %half = arith.constant 0.5 : S
      %y = {expression} : S
      "attn.yield"(%y) : (S) -> ()
    }}) : () -> ()
    """


MODS = mod("query", "arith.mulf %x, %half") + mod("key", "arith.addf %x, %x") + mod("value", "arith.negf %x")


def gradient(dtype, mods=""):
    text = GRADIENT.replace("MODS", mods).replace("xT>", f"x{dtype}>")
    return re.sub(r"(?<=x)S(?=>)|\bS\b", "f64" if dtype == "f64" else "f32", text)


def inputs(dtype):
    torch.manual_seed(1)
    shapes = [(4, 37, 24), (2, 70, 24), (2, 70, 16), (4, 37, 16)]
    return [(torch.randn(2, *shape) * scale).to(DTYPES[dtype]) for shape, scale in zip(shapes, (0.2, 1, 1, 1), strict=True)]


def error(got, wanted):
    assert got.shape == wanted.shape
    return ((got.double() - wanted).abs().max() / wanted.abs().max()).item()


@pytest.mark.parametrize(
    ("dtype", "mods"), [("f64", False), ("f32", False), ("bf16", False), ("f16", False), ("f32", True), ("bf16", True)]
)
def test_one_tensor_in_several_roles(dtype, mods):
    """k and v are multiplied and summed; what changes q, k and v changes only product 0 and source 0."""
    given = inputs(dtype)
    got = compile_program(gradient(dtype, MODS if mods else ""), "attention").run(given)
    q, k, v, do = [x.double() for x in given]
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    p = (q @ k.mT).softmax(-1)
    dp = do @ v.mT
    delta = (p * dp).sum(-1)
    wanted = [p @ (-v if mods else v), (p * (dp - delta[..., None])) @ k, delta]
    for x, y in zip(got, wanted, strict=True):
        assert error(x, y) < TOLERANCE[dtype]


@pytest.mark.parametrize("by_lse", [False, True])
def test_sums_along_rows_of_another_attention(by_lse):
    """Weights of zero; the fully masked rows have saved values that are no numbers to compute with."""
    given = inputs("f32")
    q, k, v, do = [x.double() for x in given]
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    present = torch.arange(37)[:, None] > torch.arange(70)
    s = (q @ k.mT).masked_fill(~present, -math.inf)
    m = s.amax(-1)
    l = (s - m[..., None]).exp().sum(-1)
    assert m[0, 0, 0] == -math.inf
    text = ROWS
    if by_lse:
        m, text = (
            m + l.log(),
            ROWS.replace("arith.divf %e, %row_sum", "arith.mulf %e, %one").replace(
                "%zero =", "%one = arith.constant 1.0 : f32\n      %zero ="
            ),
        )
    delta, o = compile_program(text, "attention").run([*given, m.float(), l.float()])
    wanted = (s.softmax(-1) * (do @ v.mT)).sum(-1)
    assert error(delta[:, :, 1:], wanted[:, :, 1:]) < TOLERANCE["f32"]
    assert delta[:, :, 0].isfinite().all()
    assert (o == 0).all()


@pytest.mark.parametrize("mods", ["", MODS])
def test_stages_have_the_same_value(mods):
    """By the definition of the ops: the attention, its online form block by block and merged, and the tiled kernel."""
    text, given = gradient("f64", mods), [x.numpy() for x in inputs("f64")]
    wanted = evaluate(parse(text), given)
    module = parse(text)
    Pipeline.parse("attn-online-rewrite,attn-guard-empty-rows", registry()).run(module)
    runs = [evaluate(module, given, block=(3, 7)), evaluate(module, given, block=9, split=3)]
    Pipeline.parse("attn-tile{block-q=8 block-kv=16},canonicalize,cse", registry()).run(module)
    for got in (*runs, evaluate(module, given)):
        for x, y in zip(got, wanted, strict=True):
            assert abs(x - y).max() <= 1e-13 * abs(y).max()
