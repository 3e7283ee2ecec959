"""Runs a program's compiled kernel on a backend, with arrays in and out."""

from collections.abc import Sequence

import numpy as np

from attn_mlir.driver import compile as compile_program
from attn_mlir.mlir import ir
from attn_mlir.reference.evaluator import find_function
from attn_mlir.reference.scalar import Array, element_type


def run_on(module: ir.Module, device: str, inputs: Sequence[Array], function: str = "attention") -> list[Array]:
    """The results of `function`, compiled for `device`, as float64."""
    import torch

    types = [argument.type for argument in find_function(module, function).regions[0].blocks[0].arguments]
    dtypes = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64, "i1": torch.bool}
    dtypes |= {"i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64}

    def convert(type_: ir.Type, value: Array) -> object:
        if not isinstance(type_, ir.ShapedType):
            return value.item()
        return torch.from_numpy(np.ascontiguousarray(value)).to(dtypes[str(element_type(type_))])

    arguments = [convert(type_, value) for type_, value in zip(types, inputs, strict=True)]
    q, k, v, *captures = arguments
    results = compile_program(str(module), device).run(q, k, v, captures)
    return [np.asarray(result.to(torch.float64).cpu().numpy()) for result in results]
