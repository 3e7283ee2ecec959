"""The code generator `warp`, for whoever asks for it by name: kernels of the `warp` dialect, which passes form of tiles."""

from collections.abc import Mapping

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.forming.facts import FIELDS
from attn_mlir.backends.nvidia.forming.refusal import Refused, reasons
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.warp.chips import rules_for
from attn_mlir.backends.nvidia.warp.source import kernel_code
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry


def plan(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """What was chosen for the passes, where this code generator is asked for by name."""
    return {name: choices[name] for name in FIELDS if name in choices} if choices.get("emitter") == "warp" else None


def formed(function: ir.Operation) -> tuple[ir.Module, ir.Operation]:
    """A module with the kernel that passes form of a tiled function which `tile-schedule` has left. Raises Refused, with their reasons."""
    text = function.get_asm(print_generic_op_form=True, enable_debug_info=True)
    module = ir.Module.parse(f"module {{\n{text}\n}}", function.context)
    Pipeline.parse(pipeline.SCHEDULE, registry()).run(module)
    kernels = find_all(module.operation, "warp.kernel")
    if not kernels:
        (refused,) = find_all(module.operation, "func.func")
        raise Refused("; ".join(reasons(refused).values()) or "it has no tiles")
    return module, kernels[0]


def emit(kernel: ir.Operation, target: NvidiaTarget) -> KernelCode:
    """The source of a kernel. Raises UnsupportedError where passes form none, or its chip cannot do something."""
    try:
        _module, made = formed(kernel)
    except Refused as reason:
        name = ir.StringAttr(kernel.attributes["sym_name"]).value
        raise UnsupportedError(f"warp: no scheduled kernel is made of @{name}: {reason}") from None
    return kernel_code(made, rules_for(made))
