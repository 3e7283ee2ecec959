"""Programs on an NVIDIA GPU: the kernels of a host function, compiled at the first run, on torch tensors."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from attn_mlir.backends import disk_cache
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.outputs import outputs_of
from attn_mlir.backends.gpu.packed import arguments_of, sequence_count, tensor_of
from attn_mlir.backends.gpu.program import WHOLE_ROWS, GpuLaunchPlan, PartsForm
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.backends.gpu.slices import is_sliced, slices_of
from attn_mlir.backends.gpu.split import lower_parts, lower_whole
from attn_mlir.backends.host import Host, HostStep
from attn_mlir.backends.nvidia import (
    background,
    codegen,
    cuda,
    few_decode,
    narrow_windows,
    pipeline,
    repeated_decode,
    repeated_kernel,
    repeated_kernels,
    thresholds,
    turned_ahead,
    unaligned_windows,
    widened_ahead,
)
from attn_mlir.backends.nvidia.compile import Cubin, compile_all
from attn_mlir.backends.nvidia.compiled_kernels import describe, own_memory, pack, packed_semaphores, single_kernel, spilled
from attn_mlir.backends.nvidia.delta_segments import kept_segment
from attn_mlir.backends.nvidia.launch import LIMIT, CudaLauncher
from attn_mlir.backends.nvidia.overlap import overlapped
from attn_mlir.backends.nvidia.passes.slice_values import NvidiaSliceValues, wide_blocks
from attn_mlir.backends.nvidia.target import HOPPER
from attn_mlir.backends.nvidia.work_items import listed_items
from attn_mlir.backends.program import ResultShapes
from attn_mlir.backends.segments import DeviceModel
from attn_mlir.dialects.elements import EIGHT_BIT
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from attn_mlir.performance import told

SUFFIX = "zip"
_UnitsT = TypeVar("_UnitsT")
_GIVEN = "bshd, as given"
"""In keys of calls: the first three inputs are [B, S, H, D] themselves, and not only their memory."""


class NvidiaLaunchPlan(GpuLaunchPlan):
    """A function compiled for NVIDIA GPUs that takes tensors and numbers and returns tensors. See `driver.CompiledFunction`."""

    def __init__(
        self,
        source: str,
        prepare: str,
        choices: attributes.Fields,
        host: Host,
        units: Mapping[str, GpuKernel],
        binaries: Mapping[str, Cubin] | None = None,
        key: str = "",
    ) -> None:
        """`key` is that under which the program is kept on disk once its kernels are compiled; where `binaries` are given, it is there."""
        super().__init__(source, prepare, choices, host, units := overlapped(host, units))
        self._binaries = binaries
        self.key = key
        self._launchers: dict[tuple[str, int], CudaLauncher] = {}
        # Packed tensors have new lists of work in each call; where v is seen in slices, there is more than one launch.
        packed, sliced = any(unit.kernel.lengths for unit in units.values()), any(map(is_sliced, units.values()))
        self._single = "" if packed or sliced else single_kernel(host, units)
        self._chained = not self._single and not sliced and repeated_kernels.is_chain(host, units)
        self._segments: dict[tuple[int, torch.Size, torch.Size], int] = {}
        self._calls: dict[tuple[Any, ...], repeated_kernel.RepeatedLaunch] = {}
        self._elsewhere: dict[tuple[Any, ...], repeated_kernels.ShortWay | None] = {}
        """By what `form_of` gives: what inputs of the same shapes elsewhere are run by."""
        self._decoded: dict[tuple[Any, ...], repeated_decode.RepeatedDecode | None] = {}
        self._few = few_decode.FewKernels()
        self.compile_longer: Callable[[int], NvidiaLaunchPlan] | None = None
        """Compiles the same function for at least so many keys, where schedules say that another one is better for them."""
        self.compile_packed: Callable[[int], NvidiaLaunchPlan | None] | None = None
        """Compiles the same function for windows of few keys, with so many heads of queries in a block; None where that has no form."""
        self.compile_wide: Callable[[], NvidiaLaunchPlan] | None = None
        """Compiles the same function for keys and values of q's type, where they have 8 bits (`widened_ahead`)."""
        self.compile_turned: Callable[[], NvidiaLaunchPlan] | None = None
        """Compiles the same function for 8-bit values that were transposed before (`turned_ahead`)."""
        self.compile_unaligned: Callable[[], NvidiaLaunchPlan] | None = None
        """Compiles the same function for dense biases that TMA cannot read (`unaligned_windows`)."""
        self.beside: Callable[[int], object] | None = None
        """Compiles what is likely to be needed next, such as the backward pass of a forward pass, for calls of so many keys."""
        self._keys = 0
        """Those of the call that this program is compiled for."""
        self._narrow = max((int(unit.schedule.get(narrow_windows.NARROW, 0)) for unit in units.values()), default=0)
        self._turned_from = turned_ahead.queries_of(units.values())
        self._windowed = unaligned_windows.copies_windows(units.values())
        self._longer = min((int(unit.schedule["longer"]) for unit in units.values() if "longer" in unit.schedule), default=0)

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        if self._paged:
            few_decode.start_lists(inputs)
        key = repeated_kernel.form_of(inputs, layout) if self._chained else repeated_kernel.key_of(inputs, layout) if self._single else None
        results = None if key is None else self._repeated(key, inputs, layout)
        if results is not None:
            return results
        longer = self.longer() if self._longer and inputs[1].shape[2] >= self._longer else None
        if longer is not None:
            return self._by(longer, inputs, layout)
        if self._windowed and self.compile_unaligned is not None and not unaligned_windows.are_aligned(inputs):
            return self._by(self.compile_unaligned(), inputs, layout)
        packed = self._packed(inputs) if self._narrow and self.compile_packed is not None else None
        if packed is not None:
            return self._by(packed, inputs, layout)
        if self._single and self.compile_wide is not None and widened_ahead.pays(inputs):
            wide = self._widened(inputs)
            if wide is not None:
                return self._on(self.compile_wide(), wide, layout)
        if self._turned_from and self._single and self.compile_turned is not None and turned_ahead.pays(inputs, self._turned_from):
            program = self.compile_turned()
            turned = self._turned(inputs, program)
            if turned is not None:
                return self._on(program, turned, layout)
        needed = cuda.index_of(inputs[0])
        if needed < 0:
            raise ArgumentError(f"this program is compiled for NVIDIA GPUs, but q is on {inputs[0].device}: move the tensors with .cuda()")
        if self.beside is not None and self._binaries is None:
            self._keys = inputs[1].shape[2]
        with cuda.using(needed):
            results = super().run(inputs, layout)
            if key is not None and self._single:
                self._remember(key, inputs, results, needed)
            elif key is not None and key not in self._elsewhere:
                launchers = {name: launcher for (name, device), launcher in self._launchers.items() if device == needed}
                chain = repeated_kernels.chain(self.host, self.plan(inputs), self.units, launchers, inputs, results)
                self._keep_form(key, chain)
        return results

    def for_keys(self, keys: int) -> "NvidiaLaunchPlan":
        """The program that runs calls of so many keys: this one, or one with another schedule."""
        more = self.longer() if keys >= self._longer else None
        return self if more is None else more.for_keys(keys)

    def longer(self) -> "NvidiaLaunchPlan | None":
        """The program for more keys, where schedules say that another one is better for them."""
        return self.compile_longer(self._longer) if self._longer and self.compile_longer is not None else None

    def _by(self, other: "NvidiaLaunchPlan", inputs: Sequence[Any], layout: str) -> list[torch.Tensor]:
        """A run by another program for the same function, whose short ways are this one's, too."""
        results = self._on(other, inputs, layout)
        self._share(other)
        return results

    def _on(self, other: "NvidiaLaunchPlan", inputs: Sequence[Any], layout: str) -> list[torch.Tensor]:
        """A run by another program, of which those are told that listen to this one, and `explain()` of this one."""
        other.listeners, other._copies = self.listeners, self._copies
        return other.run(inputs, layout)

    def _packed(self, inputs: Sequence[Any]) -> "NvidiaLaunchPlan | None":
        """The program for a window of few keys, where these inputs have one."""
        heads = narrow_windows.pack_of(inputs, self._narrow)
        return self.compile_packed(heads) if heads and self.compile_packed is not None else None

    def _widened(self, inputs: Sequence[Any]) -> list[Any] | None:
        """The inputs with k and v of q's type; None, which is told, where there is no memory for them."""
        wide = functools.partial(widened_ahead.widened, inputs)
        return self._ahead(wide, "widen 8-bit k and v", (1, 2), widened_ahead.reason(inputs))

    def _turned(self, inputs: Sequence[Any], program: "NvidiaLaunchPlan") -> list[Any] | None:
        """The inputs with v as transposed tiles for a program; None, which is told, where there is no memory for them."""
        turned = functools.partial(turned_ahead.turned, inputs, program.units[program._single])
        return self._ahead(turned, "transpose 8-bit v", (2,), turned_ahead.reason(inputs))

    def _ahead(self, make: Callable[[], list[Any]], what: str, places: tuple[int, ...], reason: str) -> list[Any] | None:
        """What is made of the inputs once, before the kernel, with what `explain()` says of those at `places`; None without memory."""
        try:
            made = make()
        except torch.OutOfMemoryError:
            told(f"on cuda attention is slower than it could be: there is no memory to {what} once", "docs/fp8.md")
            return None
        for place in places:
            self._copies.note(place, reason)
        return made

    def again(self, inputs: Sequence[Any], layout: str) -> list[torch.Tensor] | None:
        """See `NvidiaKernel.again`."""
        given = _GIVEN if layout == "bshd" else layout
        return self._repeated(repeated_kernel.key_of(inputs, given), inputs, given) if self._single else None

    def _repeated(self, key: tuple[Any, ...], inputs: Sequence[Any], layout: str) -> list[torch.Tensor] | None:
        """The results by the short way for these inputs, if there is one on their device, which need not be the current one."""
        call = self._elsewhere.get(key) if self._chained else self._calls.get(key)
        if call is None and self._single and self._elsewhere:
            form = repeated_kernel.form_of(inputs, layout)
            known = None if form is None else self._elsewhere.get(form)
            if isinstance(known, repeated_kernel.RepeatedLaunch):
                call = known.elsewhere()
                self._keep(key, call)
        if call is None or call.launcher.index != cuda.index_of(inputs[0]):
            return None  # an address may have been one of another device before
        if cuda.current_device() == call.launcher.index:
            return repeated_kernels.started(call, inputs)
        with torch.cuda.device(call.launcher.index):
            return repeated_kernels.started(call, inputs)

    def _remember(self, key: tuple[Any, ...], inputs: Sequence[Any], results: list[torch.Tensor], index: int) -> None:
        """Keeps the short way for these inputs, if there is one."""
        if any(0 in value.shape[:3] for value in inputs[:2]):
            return  # without rows or keys nothing was launched
        launcher = self._launchers.get((self._single, index))  # none where everything was empty
        if launcher is None or launcher.copied([*inputs, *results]) or any(repeated_kernel.is_negated(value) for value in inputs):
            return
        calls = [(key, inputs, repeated_kernel.RepeatedLaunch(launcher, results))]
        if key[0] == "bshd":
            given = repeated_kernel.transposed(inputs, 3)
            call = repeated_kernel.RepeatedLaunch(launcher, repeated_kernel.transposed(results, 1), True)
            calls.append((repeated_kernel.key_of(given, _GIVEN), given, call))
        for own, values, call in calls:
            self._keep(own, call)
            form = repeated_kernel.form_of(values, own[0])
            if form is not None:
                self._keep_form(form, call)

    def _keep(self, key: tuple[Any, ...], call: repeated_kernel.RepeatedLaunch) -> None:
        if len(self._calls) >= LIMIT:
            self._calls.clear()
        self._calls[key] = call

    def _keep_form(self, form: tuple[Any, ...], call: repeated_kernels.ShortWay | None) -> None:
        """Keeps a short way for inputs of these shapes; None: that there is none."""
        if len(self._elsewhere) >= LIMIT:
            self._elsewhere.clear()
        self._elsewhere[form] = call

    def _share(self, other: "NvidiaLaunchPlan") -> None:
        """Keeps the short ways of another program for the same function, with as many of its own as there is room for."""
        if len(self._calls) >= LIMIT:
            self._calls.clear()
        if len(self._elsewhere) >= LIMIT:
            self._elsewhere.clear()
        self._calls.update(other._calls)
        self._elsewhere.update(other._elsewhere)

    def with_work(self, splits: int, invariant: bool) -> "NvidiaLaunchPlan":
        made = super().with_work(splits, invariant)
        assert isinstance(made, NvidiaLaunchPlan)
        if invariant:
            # Which kernel runs would depend on how many keys all sequences have together.
            made._longer = made._narrow = made._turned_from = 0
            made._calls, made._elsewhere = {}, {}  # and short ways of this program may be those of others
        return made

    def segment_for_delta(self, inputs: Sequence[Any]) -> int:
        return kept_segment(self._segments, self.kernels, inputs) if self._choices.get("arch") == HOPPER.arch else 0

    def machine(self) -> DeviceModel:
        return DeviceModel(cuda.device(cuda.current_device()).multiprocessors)

    def launch_kernel(self, step: HostStep, operands: list[Any], made: ResultShapes, layout: str) -> list[torch.Tensor]:
        unit = self.units[step.kernel]
        over = operands[unit.kernel.over]
        device, index = over.device, cuda.index_of(over)
        launcher = self._launchers.get((step.kernel, index)) or self._load(step.kernel, device, index)
        memory = outputs_of(
            unit,
            made,
            over,
            layout,
            lambda output: launcher.alignment(len(operands) + output, unit.dtypes[output]),
            sequences=sequence_count(unit.kernel, operands),
        )
        items = functools.cache(listed_items) if is_sliced(unit) else listed_items  # slices have one list
        for seen, outputs in slices_of(unit, operands, memory):
            given = arguments_of(unit.kernel, seen, outputs, packed_semaphores(unit, seen), items)
            copied = launcher([*given, *own_memory(unit, seen)])
            self.tell_copied(step, operands, copied)
        return [each.result() for each in memory]

    def decode(self, inputs: Sequence[Any], layout: str, keys: int) -> list[torch.Tensor] | None:
        inputs = [self.readable(value, False) if isinstance(value, torch.Tensor) else value for value in inputs]
        few = self._few.decoded(self, inputs, layout, keys) if self._paged else None
        if few is not None:
            return few
        form = repeated_kernel.form_of(inputs, layout)
        key = (form, keys, self._splits, self._invariant, inputs[1].data_ptr() == inputs[2].data_ptr())  # see `shares_values`
        known = None if form is None else self._decoded.get(key)
        index = cuda.index_of(inputs[0])
        with cuda.using(index) if index >= 0 else contextlib.nullcontext():
            # Graphs have counters of their own, and lists that `kept_by_sizes` was asked for, as nothing else keeps these.
            captured = index >= 0 and cuda.is_capturing(index)
            results = None if known is None or captured else known(inputs)
            if results is not None:
                return results
            with repeated_decode.started() as made:
                results = super().decode(inputs, layout, keys)
            if results is not None and form is not None and not captured and key not in self._decoded:
                if len(self._decoded) >= LIMIT:
                    self._decoded.clear()
                (kernel,) = self.kernels.values()
                short = repeated_decode.repeated_decode(inputs, results, made, kernel.lengths[0])
                self._decoded[key] = short
            return results

    def lower_parts(self, form: PartsForm = WHOLE_ROWS) -> tuple[GpuKernel, GpuKernel] | None:
        return self.lowered(form, lower_parts)

    def lower_whole(self, form: PartsForm = WHOLE_ROWS) -> GpuKernel | None:
        return self.lowered(form, lower_whole)

    def lowered(self, form: PartsForm, lower: Callable[..., _UnitsT | None]) -> _UnitsT | None:
        """What one of these makes for this GPU; None for rows, functions or heads that a kernel of this form does not know."""
        wide, choices = self._choices.get("arch") == HOPPER.arch, self.choices_of(form)
        if not wide and any((argument.shape or (0,))[-1] > MAX_COLUMNS for argument in self.host.arguments[:3]):
            return None  # pairs of these are in memory, whose rows see all keys at once
        if self._paged or form.gather:
            choices["gather"] = form.gather  # of single queries, how pages are copied follows from their size (`copies_parts`)
        if form == WHOLE_ROWS:
            return lower(self._source, choices, pipeline.KERNEL, codegen.emit, "NVIDIA", wide)
        if not wide:
            return None
        whole = pipeline.KERNEL
        if form.shared:
            choices["values"] = "keys"
            whole = whole.replace(NvidiaSliceValues.name, f"{NvidiaSliceValues.name}{{columns={2 * MAX_COLUMNS}}}")
        try:
            return lower(self._source, {**choices, "emitter": "hopper"}, whole, codegen.emit, "NVIDIA", wide)
        except (CompileError, UnsupportedError):
            return None

    def shares_values(self, inputs: Sequence[Any]) -> bool:
        k, v = inputs[1:3]
        steps = all(size == 1 or a == b for size, a, b in zip(v.shape, k.stride(), v.stride(), strict=True))
        same = k.data_ptr() == v.data_ptr() and k.shape[:-1] == v.shape[:-1]
        same &= v.element_size() > 1  # 8-bit keys are widened for scores and for sums apart
        return same and steps and MAX_COLUMNS < v.shape[-1] <= k.shape[-1] and self._choices.get("arch") == HOPPER.arch

    def copies_parts(self, size: int) -> bool:
        return size < thresholds.COPIED_PAGES

    def blocks_of(self, form: PartsForm) -> tuple[int, int]:
        columns = (self.host.arguments[0].shape or (0,))[-1]
        if self.host.arguments[1].element in EIGHT_BIT and 128 < columns <= MAX_COLUMNS:
            return 64, 64  # shared memory has bytes beside tiles of 16 bits
        return (64, 64) if form.shared else wide_blocks(columns) if columns > MAX_COLUMNS else super().blocks_of(form)

    def with_units(self, units: Mapping[str, GpuKernel]) -> "NvidiaLaunchPlan":
        made = NvidiaLaunchPlan(self._source, self._prepare, self._choices, self.host, units)
        made.listeners, made._copies = self.listeners, self._copies
        return made

    def launcher_of(self, name: str, tensor: torch.Tensor) -> CudaLauncher:
        """One of this program's kernels on the device of a tensor."""
        index = cuda.index_of(tensor)
        return self._launchers.get((name, index)) or self._load(name, tensor.device, index)

    def start_part(self, name: str, arguments: list[Any], outputs: int) -> None:
        launcher = self.launcher_of(name, arguments[0])
        copied = launcher(arguments)
        for number in sorted({0, 1, 2} & set(copied)):
            self._copies.tell(number, tensor_of(arguments[number]))
        repeated_decode.tell_started(launcher, arguments, copied)

    def _load(self, name: str, device: torch.device, index: int) -> CudaLauncher:
        """The kernel on a device, compiled and loaded at its first use there."""
        binaries = self.binaries()
        slow = spilled(self.units, binaries)
        for listener in self.listeners if slow else []:
            listener(slow)
        with self._lock:
            launcher = self._launchers.get((name, index))
            if launcher is None:
                unit = self.units[name]
                launcher = self._launchers[(name, index)] = CudaLauncher(unit.kernel, unit.code, binaries[name], device, index)
            return launcher

    def binaries(self) -> Mapping[str, Cubin]:
        """The compiled kernels; the first call compiles all at once. Raises CompileError, and UnsupportedError without a compiler."""
        with self._lock:
            if self._binaries is None:
                if self.beside is not None:
                    background.in_background(functools.partial(self.beside, self._keys))
                made = compile_all([unit.code for unit in self.units.values()])
                self._binaries = dict(zip(self.units, made, strict=True))
                if self.key:
                    disk_cache.save(self.key, SUFFIX, *pack(self.host, self.units, self._binaries))
            return self._binaries

    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`; "cuda" is the last: the source of the kernels, after "tilelang" where they were made through it."""
        stages = self.ir_stages(pipeline.KERNEL)
        programs = [unit.code.program for unit in self.units.values() if unit.code.program]
        if programs:
            stages["tilelang"] = "\n".join(programs)
        return {**stages, "cuda": "\n".join(unit.code.source for unit in self.units.values())}

    def explain(self) -> str:
        return "\n".join(describe(unit, (self._binaries or {}).get(name)) for name, unit in self.units.items())
