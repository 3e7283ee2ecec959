"""Rows divided by their length, for delta rules on NVIDIA GPUs: programs of the compiler for 16 bits, where PyTorch's kernels are slow."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level
from torch.autograd.function import once_differentiable

from attn_mlir import driver
from attn_mlir.runtime.dispatch import is_plain, may_carry_tangents

_ELEMENTS = {torch.float16: "f16", torch.bfloat16: "bf16"}

_LENGTH = """\
      %value = tensor.extract %x[%b, %h, %i, %d] : {rows}
      %wide = arith.extf %value : {element} to f32
      %square = tensor.extract %squares[%b, %h, %i] : tensor<?x?x?xf32>
      %epsilon = arith.constant {epsilon:e} : f32
      %sum = arith.addf %square, %epsilon : f32
      %length = math.rsqrt %sum : f32
      %factor = arith.constant {factor:.9e} : f32
      %by = arith.mulf %length, %factor : f32
"""
"""An element of x in f32, one over its row's length, and what its row is multiplied by."""
_FORWARD = """
func.func @attention(%x: {rows}) -> ({rows}, tensor<?x?x?xf32>) {{
  %squares = "attn.row_dot"(%x, %x) : ({rows}, {rows}) -> tensor<?x?x?xf32>
  %weights = "attn.elements"(%x) ({{
    "attn.element"() ({{
    ^bb0(%b: index, %h: index, %i: index, %d: index):
{length}      %unit = arith.mulf %wide, %by : f32
      "attn.yield"(%unit) : (f32) -> ()
    }}) : () -> ()
  }}) : ({rows}) -> none
  %result = "attn.collect"(%weights) {{weight = 0 : i64}} : (none) -> {rows}
  return %result, %squares : {rows}, tensor<?x?x?xf32>
}}
"""

_SQUARES = """
func.func @attention(%q: {rows}, %k: {rows}) -> (tensor<?x?x?xf32>, tensor<?x?x?xf32>) {{
  %of_q = "attn.row_dot"(%q, %q) : ({rows}, {rows}) -> tensor<?x?x?xf32>
  %of_k = "attn.row_dot"(%k, %k) : ({rows}, {rows}) -> tensor<?x?x?xf32>
  return %of_q, %of_k : tensor<?x?x?xf32>, tensor<?x?x?xf32>
}}
"""

_BACKWARD = """
func.func @attention(%x: {rows}, %dy: {rows}, %squares: tensor<?x?x?xf32>) -> {rows} {{
  %along = "attn.row_dot"(%x, %dy) : ({rows}, {rows}) -> tensor<?x?x?xf32>
  %weights = "attn.elements"(%x) ({{
    "attn.element"() ({{
    ^bb0(%b: index, %h: index, %i: index, %d: index):
{length}      %given = tensor.extract %dy[%b, %h, %i, %d] : {rows}
      %gradient = arith.extf %given : {element} to f32
      %inverse = arith.mulf %length, %length : f32
      %product = tensor.extract %along[%b, %h, %i] : tensor<?x?x?xf32>
      %share = arith.mulf %product, %inverse : f32
      %away = arith.mulf %wide, %share : f32
      %rest = arith.subf %gradient, %away : f32
      %scaled = arith.mulf %rest, %by : f32
      "attn.yield"(%scaled) : (f32) -> ()
    }}) : () -> ()
  }}) : ({rows}) -> none
  %result = "attn.collect"(%weights) {{weight = 0 : i64}} : (none) -> {rows}
  return %result : {rows}
}}
"""


def unit_rows(x: Tensor, epsilon: float, device: str | torch.device | None, factor: float = 1.0) -> Tensor | None:
    """Rows of [B, T, H, D] times `factor` / sqrt(sum of squares + epsilon), in f32 and rounded once, with a gradient.

    None where PyTorch is to do it: elsewhere than on NVIDIA GPUs, in other types, while torch.compile traces, without elements.
    """
    kind = _kind(x, device)
    if kind is None:
        return None
    if not (x.requires_grad and torch.is_grad_enabled()):  # autograd's function costs as much on the host as the program does
        return _divided(x, epsilon, factor, kind)[0].transpose(1, 2)
    return _UnitRows.apply(x, epsilon, factor, kind)


def row_squares(q: Tensor, k: Tensor, device: str | torch.device | None) -> tuple[Tensor, Tensor] | None:
    """Sums of squares of rows of q and k, [B, T, H, D] of the same D, as f32 [B, H, T], without a gradient, by one call of a program.

    None where `unit_rows` gives None for one of them, or they are of two types or sizes.
    """
    kind = _kind(q, device)
    if kind is None or _kind(k, device) != kind or q.dtype != k.dtype or q.shape[3] != k.shape[3]:
        return None
    program = _program(_SQUARES, q.shape[3], q.dtype, 0.0, 1.0, kind)
    of_q, of_k = program.run([q.detach().transpose(1, 2), k.detach().transpose(1, 2)], "bshd")
    return of_q, of_k


def _kind(x: Tensor, device: str | torch.device | None) -> str | None:
    """The device whose programs divide rows; None where PyTorch does."""
    kind = str(device) if device is not None else x.device.type
    fits = x.dtype in _ELEMENTS and x.numel() > 0 and kind.startswith("cuda") and torch.version.hip is None
    if not fits or torch.compiler.is_compiling():
        return None
    return kind if is_plain([x]) and not may_carry_tangents() and maybe_current_level() is None else None


@functools.cache
def _program(text: str, columns: int, dtype: torch.dtype, epsilon: float, factor: float, device: str) -> driver.CompiledFunction:
    element = _ELEMENTS[dtype]
    given = {"rows": f"tensor<?x?x?x{columns}x{element}>", "element": element, "epsilon": epsilon, "factor": factor}
    module = text.format(length=_LENGTH.format(**given), **given)
    return driver.compile_derivative(module, device, "given", ["x"])


def _divided(x: Tensor, epsilon: float, factor: float, device: str) -> list[Tensor]:
    """The rows as [B, H, T, D], and the sums of their squares."""
    return _program(_FORWARD, x.shape[3], x.dtype, epsilon, factor, device).run([x.transpose(1, 2)], "bshd")


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, epsilon: float, factor: float, device: str) -> Tensor:
        """The rows; the sums of squares are saved with x."""
        made, squares = _divided(x, epsilon, factor, device)
        ctx.save_for_backward(x, squares)
        ctx.of = (epsilon, factor, device)
        return made.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        """The gradient of x."""
        x, squares = ctx.saved_tensors
        program = _program(_BACKWARD, x.shape[3], x.dtype, *ctx.of)
        (made,) = program.run([x.transpose(1, 2), gradients[0].to(x.dtype).transpose(1, 2), squares], "bshd")
        return made.transpose(1, 2), None, None, None
