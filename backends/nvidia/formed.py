"""Kernels of the `warp` dialect as an emitter: those of attention with 8-bit q, k and v, which no other one makes."""

from collections.abc import Mapping

from attn_mlir.backends.gpu.attributes import SCHEDULE, Fields, write
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.forming.refusal import reasons
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.warp import RULES, kernel_code
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry

_ADVICE = "dequantise q, k and v, for example k = (k.float() * k_descale).to(torch.bfloat16), or compute on the CPU"


def plan(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """The schedule of a kernel that loads 8-bit elements, None for others. Raises UnsupportedError where passes form none of it."""
    if not any(is_eight_bit(ir.MemRefType(load.operands[0].type).element_type) for load in find_all(kernel, "tile.load")):
        return None
    if {"lengths", "paged"} & {item.name for item in ir.DictAttr(kernel.attributes["tile.kernel"])}:
        raise UnsupportedError(f"packed sequences and pages take no 8-bit q, k and v on NVIDIA GPUs yet: {_ADVICE}")
    if not target.eight_bit:
        raise UnsupportedError(f"{target.arch} has no 8-bit matrix instructions: {_ADVICE}")
    fields: Fields = {"stages": 2, **{name: value for name, value in choices.items() if name in ("stages", "join")}}
    kernel.attributes[SCHEDULE] = write({"arch": target.arch, **fields})
    try:
        emit(kernel, target)
    finally:
        del kernel.attributes[SCHEDULE]
    return fields


def emit(kernel: ir.Operation, target: NvidiaTarget) -> KernelCode:
    """The source of a scheduled kernel. Raises UnsupportedError for what passes form no kernel of."""
    module = formed(kernel)
    kernels = find_all(module.operation, "warp.kernel")
    if not kernels:
        why = "; ".join(reason for left in find_all(module.operation, "func.func") for reason in reasons(left).values())
        raise UnsupportedError(f"no kernel with 8-bit elements is formed: {why}. {_ADVICE[0].upper()}{_ADVICE[1:]}")
    return kernel_code(kernels[0], RULES)


def formed(function: ir.Operation) -> ir.Module:
    """A module with the kernel that passes form of a tiled function with a schedule, or with the function and what they refused."""
    text = function.get_asm(print_generic_op_form=True, enable_debug_info=True)
    module = ir.Module.parse(f"module {{\n{text}\n}}", function.context)
    Pipeline.parse(pipeline.SCHEDULE, registry()).run(module)
    return module
