"""The way of a program to its scheduled kernels, the same for the drivers of all GPUs."""

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.compiled_kernels import outlined
from attn_mlir.backends.gpu.input_limits import check_types
from attn_mlir.backends.gpu.prepared import with_prepared
from attn_mlir.backends.host import Host, read_host
from attn_mlir.backends.program import function_named, may_be_wide
from attn_mlir.dialects import load_all
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry


def scheduled(
    context: ir.Context, source: str, name: str, prepare: str, choices: Fields, to_kernels: str, maker: str, *, wide: bool = False
) -> tuple[ir.Module, Host]:
    """The module with the kernels of function `name` after the pipeline `to_kernels`, and the function as the host runs it.

    `context` is the current one; `maker` of the GPUs is named where a type is not supported; `wide`: whether they have kernels for heads
    of more than 256 columns.
    """
    load_all(context)
    module = ir.Module.parse(source)
    check_types(module, maker, wide and may_be_wide(prepare, module))
    Pipeline.parse(prepare, registry()).run(module)
    host = read_host(function_named(module, name))
    outlined(module, host, choices)
    Pipeline.parse(to_kernels, registry()).run(module)
    return module, with_prepared(module, host)
