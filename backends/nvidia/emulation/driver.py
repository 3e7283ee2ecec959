"""Compiles programs for the emulation of Hopper, or finds them in memory."""

from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attention_kernel import AttentionKernel
from attn_mlir.backends.gpu.compiled_kernels import read_units
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.compiled_kernels import round_results
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.nvidia.emulation import CHIPS, EMULATED, choices_of
from attn_mlir.backends.nvidia.emulation.kernel import form, form_elements, form_tiles, is_by_element, is_of_delta
from attn_mlir.backends.nvidia.emulation.program import EmulatedLaunchPlan
from attn_mlir.backends.nvidia.target import HOPPER, TARGETS
from attn_mlir.backends.nvidia.warp.claimed import without_claims
from attn_mlir.backends.program import OUTLINE, reported
from attn_mlir.dialects import loaded
from attn_mlir.mlir import ir

_PROGRAMS: dict[Any, EmulatedLaunchPlan] = {}
_KERNELS: dict[EmulatedLaunchPlan, AttentionKernel[EmulatedLaunchPlan]] = {}


def compile_module(source: str, device: str = EMULATED) -> AttentionKernel[EmulatedLaunchPlan]:
    """Compiles a module given as text. Raises CompileError, or UnsupportedError for what no scheduled kernel is made of."""
    program = compile_program(source, "attention", device=device)
    return _KERNELS.setdefault(program, AttentionKernel(program))


def compile_derivative(
    source: str, function: str, wrt: Sequence[str], deterministic: bool = False, segment: int = 0, device: str = EMULATED
) -> EmulatedLaunchPlan:
    """Compiles a derivative of the program `@attention`; see `driver.compile_derivative`."""
    return compile_program(source, *derivative(function, wrt, CHIPS[device], segment, deterministic), deterministic, device)


def compile_program(
    source: str,
    name: str,
    prepare: str = OUTLINE,
    deterministic: bool = False,
    device: str = EMULATED,
    more: Mapping[str, int] | None = None,
) -> EmulatedLaunchPlan:
    """Compiles function `name` of what the pipeline `prepare` makes of a module, or finds it in memory; `more` as on a GPU."""
    choices: attributes.Fields = {**choices_of(device), **({"deterministic": 1} if deterministic else {}), **(more or {})}
    key = (source, name, prepare, *choices.items())
    if key not in _PROGRAMS:
        _PROGRAMS[key] = _compile(source, name, prepare, choices)
    return _PROGRAMS[key]


def _compile(source: str, name: str, prepare: str, choices: attributes.Fields) -> EmulatedLaunchPlan:
    texts: dict[str, str] = {}
    with reported(), loaded() as context:
        wide = choices["arch"] != HOPPER.arch  # whose kernels of slices the evaluator does not know
        module, host = scheduled(context, source, name, prepare, choices, pipeline.TILED_FOR_WARP, "NVIDIA", wide=wide)
        round_results(module, host)

        def emit(function: ir.Operation) -> KernelCode:
            name = ir.StringAttr(function.attributes["sym_name"]).value
            if is_by_element(function):
                texts[name], code = form_elements(function, TARGETS[str(choices["arch"])])
            else:
                texts[name], code = form_tiles(function) if is_of_delta(function) else form(function)
            return code

        units = {name: without_claims(unit) for name, unit in read_units(module, host, emit).items()}
    return EmulatedLaunchPlan(source, prepare, choices, host, units, texts)
