"""Compiles programs for NVIDIA GPUs, or finds them in memory or on disk."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from attn_mlir.backends import disk_cache
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attention_kernel import AttentionKernel
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel, read_units, slow_kernels
from attn_mlir.backends.gpu.program import GpuLaunchPlan
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.host import Host
from attn_mlir.backends.nvidia import codegen, cuda, pipeline, target, tilelang, turned_ahead, widened_ahead
from attn_mlir.backends.nvidia.compile import asked_for
from attn_mlir.backends.nvidia.compiled_kernels import round_results, unpack
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.nvidia.emulation import CHIPS
from attn_mlir.backends.nvidia.emulation import driver as emulated
from attn_mlir.backends.nvidia.emulation.program import EmulatedLaunchPlan
from attn_mlir.backends.nvidia.narrow_windows import PACK, prepared
from attn_mlir.backends.nvidia.program import SUFFIX, NvidiaLaunchPlan
from attn_mlir.backends.nvidia.target import TILELANG, NvidiaTarget
from attn_mlir.backends.nvidia.tilelang.lowering import available
from attn_mlir.backends.nvidia.unaligned_windows import UNALIGNED
from attn_mlir.backends.nvidia.warp.synchronous import SHARED
from attn_mlir.backends.program import OUTLINE, function_named, reported
from attn_mlir.dialects import loaded
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import LOCK

_MAKER = "NVIDIA"
_BACKWARD = {"fwd": "bwd", "written-fwd": "written-bwd"}
_PROGRAMS: dict[Any, NvidiaLaunchPlan] = {}
_KERNELS: dict[NvidiaLaunchPlan, "NvidiaKernel"] = {}


class NvidiaKernel(AttentionKernel[NvidiaLaunchPlan]):
    """A program that is a whole attention. See `driver.Repeating`."""

    def again(self, inputs: Sequence[Any], layout: str) -> list[torch.Tensor] | None:
        """See `driver.Repeating`."""
        return self.program.again(inputs, layout)


def compile_module(source: str, device: str = "cuda") -> NvidiaKernel | AttentionKernel[EmulatedLaunchPlan]:
    """Compiles a module given as text; machine code is made at the first launch, none for "cuda-emulated" and the like.

    Raises CompileError, or UnsupportedError for what no kernel takes.
    """
    if device in CHIPS:
        return emulated.compile_module(source, device)
    program = compile_program(source, "attention")
    return _KERNELS.setdefault(program, NvidiaKernel(program))


def compile_derivative(
    source: str, function: str, wrt: Sequence[str], deterministic: bool = False, segment: int = 0, device: str = "cuda"
) -> GpuLaunchPlan:
    """Compiles a derivative of the program `@attention`; see `driver.compile_derivative`.

    While the machine code of a forward pass is made, that of its backward is, too.
    """
    if device in CHIPS:
        return emulated.compile_derivative(source, function, wrt, deterministic, segment, device)
    return derivative_for_gpu(source, function, wrt, deterministic, segment)


def derivative_for_gpu(source: str, function: str, wrt: Sequence[str], deterministic: bool, segment: int) -> NvidiaLaunchPlan:
    """`compile_derivative` for a GPU."""
    program = compile_program(source, *derivative(function, wrt, current_target().arch, segment, deterministic), deterministic)
    if function in _BACKWARD and program.beside is None:

        def backward(keys: int) -> None:
            with LOCK:
                made = derivative_for_gpu(source, _BACKWARD[function], wrt, deterministic, segment)
            made.for_keys(keys).binaries()

        program.beside = backward
    return program


def compile_program(
    source: str, name: str, prepare: str = OUTLINE, deterministic: bool = False, more: Mapping[str, int] | None = None
) -> NvidiaLaunchPlan:
    """Compiles function `name` of what the pipeline `prepare` makes of a module, or finds it in memory or on disk.

    `more`: of which kind calls are, `length`: with so many keys and more, or `pack`: with windows of few keys (`narrow_windows`).
    """
    choices = {**_for_device(), **(more or {})}
    if deterministic:
        choices["deterministic"] = 1
    key = (source, name, prepare, *choices.items())
    if key not in _PROGRAMS:
        program = _PROGRAMS[key] = _compile(source, name, prepare, choices)

        def longer(keys: int) -> NvidiaLaunchPlan:
            with LOCK:
                return compile_program(source, name, prepare, deterministic, {"length": keys})

        @cache
        def packed(heads: int) -> NvidiaLaunchPlan | None:
            with LOCK:
                try:
                    return compile_program(source, name, prepared(prepare), deterministic, {PACK: heads})
                except UnsupportedError:
                    return None  # something depends on the head of a query, or takes other registers: the usual kernel

        @cache
        def wide() -> NvidiaLaunchPlan:
            with LOCK:
                return compile_program(widened_ahead.wide_source(source, program.host), name, prepare, deterministic)

        def unaligned() -> NvidiaLaunchPlan:
            with LOCK:
                return compile_program(source, name, prepare, deterministic, {**(more or {}), UNALIGNED: 1})

        @cache
        def turned() -> NvidiaLaunchPlan:
            with LOCK:
                return compile_program(source, name, prepare, deterministic, {**(more or {}), turned_ahead.TURNED: 1})

        program.compile_longer = longer
        program.compile_turned = turned
        program.compile_unaligned = unaligned
        program.compile_packed = packed if not more else None
        if widened_ahead.may_widen(program.host, prepare, OUTLINE):
            program.compile_wide = wide
    return _PROGRAMS[key]


def _compile(source: str, name: str, prepare: str, choices: attributes.Fields) -> NvidiaLaunchPlan:
    parts = [source, name, prepare, str(choices), pipeline.KERNEL, disk_cache.version("gpu", "nvidia", "tuning"), asked_for()]
    key = disk_cache.key_of(*parts)
    found = disk_cache.find(key, SUFFIX, unpack)
    if found is not None:
        return NvidiaLaunchPlan(source, prepare, choices, *found, key=key)
    return NvidiaLaunchPlan(source, prepare, choices, *_lower(source, name, prepare, choices), key=key)


def _lower(source: str, name: str, prepare: str, choices: attributes.Fields) -> tuple[Host, dict[str, GpuKernel]]:
    with reported(), loaded() as context:
        module, host = scheduled(context, source, name, prepare, choices, pipeline.KERNEL, _MAKER, wide=True)
        round_results(module, host)
        called = [step for step in host.steps if step.kernel]
        tilelang.emit_ahead([function_named(module, step.kernel) for step in called])
        return host, read_units(module, host, codegen.emit)


def slow(source: str, function: str, wrt: Sequence[str], deterministic: bool = False, segment: int = 0) -> dict[str, str]:
    """See `driver.slow_kernels`."""
    choices = {**_for_device(), **({"deterministic": 1} if deterministic else {})}
    prepared = derivative(function, wrt, current_target().arch, segment, deterministic)
    with reported(), loaded() as context:
        module, host = scheduled(context, source, *prepared, choices, pipeline.KERNEL, _MAKER, wide=True)
        return slow_kernels(function_named(module, step.kernel) for step in host.steps if step.kernel)


def _for_device() -> attributes.Fields:
    """What is chosen for all kernels of torch's current GPU: the chip, the shared memory where it has less than a GPU of that kind, and, on
    chips where others make scans of linear attention, whether TileLang is not there.
    """
    known = current_target()
    choices: attributes.Fields = {"arch": known.arch}
    if known.bulk_copies and not available():
        choices[TILELANG] = 0
    if torch.cuda.is_available() and not known.bulk_copies:
        found = cuda.device(torch.cuda.current_device()).shared_bytes
        if found < known.shared_bytes:
            choices[SHARED] = found
    return choices


def current_target() -> NvidiaTarget:
    """The description of torch's current GPU; of an H100 on machines without one, where kernels can be looked at but not run."""
    if not torch.cuda.is_available():
        return target.HOPPER
    return target_of(cuda.device(torch.cuda.current_device()))


def target_of(device: cuda.Device) -> NvidiaTarget:
    """The description that code for a device is generated from. Raises UnsupportedError for GPUs older than Ampere."""
    if device.capability < (8, 0):
        raise UnsupportedError(
            f"a {device.name} is older than what kernels are made for, compute capability 8.0: move the tensors to the CPU"
        )
    return target.HOPPER if device.capability == (9, 0) else target.AMPERE
