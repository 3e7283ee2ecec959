"""Runs a program's compiled kernels on a backend, with arrays in and out."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_mlir import driver
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.evaluator import find_function
from attn_mlir.reference.linear import OPS as LINEAR
from attn_mlir.reference.scalar import Array, element_type


def run_on(module: ir.Module, device: str, inputs: Sequence[Array], function: str = "attention") -> list[Array]:
    """The results of `function`, compiled for `device`, as float64."""
    func = find_function(module, function)
    types = [argument.type for argument in func.regions[0].blocks[0].arguments]
    if find_all(func, *LINEAR, "attn.sequences"):  # what only programs of several kernels, or with lists of work, launch
        return _arrays(driver.compile_derivative(str(module), device, "", ()).run(_tensors(types, inputs)))
    q, k, v, *captures = _tensors(types, inputs)
    return _arrays(driver.compile(str(module), device).run(q, k, v, captures))


def run_derivative_on(
    original: ir.Module, derivative: ir.Module, device: str, kind: str, wrt: Sequence[str], inputs: Sequence[Array]
) -> list[Array]:
    """The results of the derivative `kind` of @attention, compiled for `device`, as float64.

    `derivative` holds that function too, and so the types of its arguments.
    """
    types = [argument.type for argument in find_function(derivative, f"attention_{kind}").regions[0].blocks[0].arguments]
    text = original.operation.get_asm(enable_debug_info=True)
    return _arrays(driver.compile_derivative(text, device, kind, wrt).run(_tensors(types, inputs)))


def _tensors(types: Sequence[ir.Type], inputs: Sequence[Array]) -> list[Any]:
    import torch

    dtypes = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "i1": torch.bool}
    dtypes |= {"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64}

    def convert(type_: ir.Type, value: Array) -> object:
        if not isinstance(type_, ir.ShapedType):
            return value.item()
        return torch.from_numpy(np.ascontiguousarray(value)).to(dtypes[str(element_type(type_))])

    return [convert(type_, value) for type_, value in zip(types, inputs, strict=True)]


def _arrays(results: Sequence[Any]) -> list[Array]:
    import torch

    return [np.asarray(result.to(torch.float64).cpu().numpy()) for result in results]
