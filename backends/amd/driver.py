"""Compiles programs for AMD GPUs and for their emulation, or finds them in memory or on disk."""

from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends import disk_cache
from attn_mlir.backends.amd import codegen, hip, pipeline
from attn_mlir.backends.amd.devices import ON_CPU
from attn_mlir.backends.amd.program import AmdLaunchPlan
from attn_mlir.backends.amd.target import MI250, TARGETS
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attention_kernel import AttentionKernel
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel, pack, read_units, unpack
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.host import Host
from attn_mlir.backends.program import OUTLINE, prepare_derivative, reported
from attn_mlir.dialects import loaded
from attn_mlir.errors import UnsupportedError

_SUFFIX = "zip"
_PROGRAMS: dict[Any, AmdLaunchPlan] = {}
_KERNELS: dict[AmdLaunchPlan, AttentionKernel[AmdLaunchPlan]] = {}


def compile_module(source: str, device: str) -> AttentionKernel[AmdLaunchPlan]:
    """Compiles a module given as text; clang runs at the first launch. Raises CompileError, or UnsupportedError where nothing makes it."""
    program = compile_program(source, "attention", device=device)
    return _KERNELS.setdefault(program, AttentionKernel(program))


def compile_derivative(source: str, function: str, wrt: Sequence[str], deterministic: bool, device: str, segment: int = 0) -> AmdLaunchPlan:
    """Compiles a derivative of the program `@attention`; see `driver.compile_derivative`."""
    prepared = prepare_derivative(function, wrt, pipeline.OUTLINE, segment, residual=True)
    return compile_program(source, *prepared, deterministic, device=device)


def compile_program(source: str, name: str, prepare: str = OUTLINE, deterministic: bool = False, *, device: str) -> AmdLaunchPlan:
    """Compiles function `name` of what the pipeline `prepare` makes of a module, or finds it in memory or on disk."""
    choices: attributes.Fields = {"arch": arch_for(device)}
    if deterministic:
        choices["deterministic"] = 1
    key = (source, name, prepare, device, *choices.values())
    if key not in _PROGRAMS:
        host, units = _units(source, name, prepare, choices)
        _PROGRAMS[key] = AmdLaunchPlan(source, prepare, choices, host, units, device)
    return _PROGRAMS[key]


def arch_for(device: str) -> str:
    """What kernels are made for: torch's current GPU, or that which is emulated; gfx90a where there is no GPU, to look at kernels.

    Raises UnsupportedError for other GPUs than those in `target.TARGETS`.
    """
    if device in ON_CPU:
        return ON_CPU[device]
    if not hip.is_rocm() or not torch.cuda.is_available():
        return MI250.arch
    arch = hip.arch_of(torch.cuda.current_device())
    if arch not in TARGETS:
        raise UnsupportedError(
            f"kernels for AMD GPUs are made for {', '.join(TARGETS)}, and this one is {arch}: move the tensors to the CPU"
        )
    return arch


def _units(source: str, name: str, prepare: str, choices: attributes.Fields) -> tuple[Host, dict[str, GpuKernel]]:
    key = disk_cache.key_of(source, name, prepare, str(choices), pipeline.KERNEL, disk_cache.version("gpu", "amd", "tuning"))
    found = disk_cache.find(key, _SUFFIX, unpack)
    if found is not None:
        return found
    host, units = _lower(source, name, prepare, choices)
    disk_cache.save(key, _SUFFIX, *pack(host, units))
    return host, units


def _lower(source: str, name: str, prepare: str, choices: attributes.Fields) -> tuple[Host, dict[str, GpuKernel]]:
    with reported(), loaded() as context:
        module, host = scheduled(context, source, name, prepare, choices, pipeline.KERNEL, "AMD", wide=True)
        return host, read_units(module, host, codegen.emit)
