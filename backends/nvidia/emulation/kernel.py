"""Scheduled kernels on torch tensors of the CPU."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.packed import Ragged, tensor_of
from attn_mlir.backends.nvidia import codegen, simt
from attn_mlir.backends.nvidia.emulation import CHIPS, EMULATED
from attn_mlir.backends.nvidia.forming.refusal import Refused, reasons
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.warp import kernel_code, rules_for
from attn_mlir.backends.nvidia.warp.emitter import formed
from attn_mlir.dialects import load_all
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.tiles import run_kernel
from attn_mlir.reference.warp import arguments_of, kernels_of, read_kernel, run_scheduled
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.schedules import drawn

_BLOCKS = 2
"""Thread blocks that run at the same time; each takes every second tile, so that loops over tiles are run, too."""
_SEED = 0


def form(function: ir.Operation) -> tuple[str, KernelCode]:
    """The kernel in the `warp` dialect that passes form of a tiled function which `tile-schedule` has left, and its CUDA.

    Raises UnsupportedError, which names what there is no such kernel of.
    """
    try:
        module, kernel = formed(function)
    except Refused as reason:
        raise UnsupportedError(refusal(function, str(reason))) from None
    return module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True), kernel_code(kernel, rules_for(kernel))


def is_by_element(function: ir.Operation) -> bool:
    """Whether a tiled function makes numbers of rows of packed sequences, each by itself."""
    return attributes.grid_kind(function) == "elements" and "lengths" in ir.DictAttr(function.attributes["tile.kernel"])


def form_elements(function: ir.Operation, target: NvidiaTarget) -> tuple[str, KernelCode]:
    """A function that `is_by_element` as it is, and the plain CUDA that GPUs run.

    Stores of the `warp` dialect need views in which sequences end, which such tensors do not come as.
    """
    fields = simt.plan(function, target, {}) or {}
    function.attributes[attributes.SCHEDULE] = attributes.write({"emitter": "simt", "arch": target.arch, **fields})
    return _alone(function), simt.emit(function, target)


def is_of_delta(function: ir.Operation) -> bool:
    """Whether a tiled function is of a program with a delta rule, and no kernel of the `warp` dialect: scans never are."""
    own, *others = (
        attributes.read(each, attributes.SCHEDULE).get("emitter") for each in (function, *find_all(function.parent, "func.func"))
    )
    return own == "scans" or ("scans" in others and not _is_formed(function))


def _is_formed(function: ir.Operation) -> bool:
    try:
        formed(function)
    except Refused:
        return False
    return True


def form_tiles(function: ir.Operation) -> tuple[str, KernelCode]:
    """A function that `is_of_delta` as it is, which is evaluated tile by tile, and the CUDA that GPUs run."""
    return _alone(function), codegen.emit(function)


def _alone(function: ir.Operation) -> str:
    """A module with this function."""
    return f"module {{\n{function.get_asm(print_generic_op_form=True, enable_debug_info=True)}\n}}"


def refusal(function: ir.Operation, why: str = "") -> str:
    """Why passes have formed no kernel of a function, for people."""
    name, arch = ir.StringAttr(function.attributes["sym_name"]).value, attributes.read(function, attributes.SCHEDULE).get("arch")
    device = next((device for device, chip in CHIPS.items() if chip == arch), EMULATED)
    return (
        f'device="{device}" runs kernels of the warp dialect, and none is made of @{name}: '
        f"{why or '; '.join(reasons(function).values()) or 'it has no tiles'}. "
        'Use device="cpu", or "hip-emulated" for kernels of another GPU'
    )


class EvaluatedKernel:
    """A kernel that the evaluator runs: roles interleaved at random, copies that land late, every race found."""

    def __init__(self, text: str) -> None:
        with LOCK:
            self._context = ir.Context()
            load_all(self._context)
            with self._context:
                self._module = ir.Module.parse(text)
                kernels = kernels_of(self._module)
                self._kernel = kernels[0] if kernels else find_all(self._module.operation, "func.func")[0]
        self._read: Inst | None = None

    def __call__(self, arguments: Sequence[Any], outputs: Mapping[int, str]) -> None:
        """Runs on the arguments of the tile function, of which those with numbers in `outputs` are written: "store"d, or added to.

        Raises `reference.warp.Fault` where a GPU would hang, race, or read what is not there.
        """
        arrays = [_array(x, outputs.get(n, "")) for n, x in enumerate(arguments)]
        with LOCK, self._context:
            if self._kernel.name == "func.func":
                # Lists of work, the last argument of kernels on packed sequences, are made where they are evaluated.
                listed = "lengths" in ir.DictAttr(self._kernel.attributes["tile.kernel"])
                count = len(self._kernel.regions[0].blocks[0].arguments) - listed
                seen = [_in_slots(array, x, outputs.get(n, "")) for n, (array, x) in enumerate(zip(arrays, arguments, strict=True))]
                run_kernel(self._kernel, seen[:count], rounding=count == len(arrays))
                return _give(arguments, arrays, outputs)
            assert len(arguments_of(self._kernel)) - len(arrays) in (0, 1)  # the counter of tiles
            self._read = self._read or read_kernel(self._kernel)
            run_scheduled(self._read, arrays, lambda: drawn(_SEED), _BLOCKS)
        return _give(arguments, arrays, outputs)


def _give(arguments: Sequence[Any], arrays: Sequence[Any], outputs: Mapping[int, str]) -> None:
    """Copies what a kernel wrote to the tensors that it was given."""
    for number, kind in outputs.items():
        tensor, array = _own_slots(tensor_of(arguments[number]), kind), arrays[number]
        if isinstance(arguments[number], Ragged):
            array = array[..., -1:, :, :, :] if array.ndim > 3 else array[-1:]
        tensor.copy_(torch.from_numpy(array.copy()).reshape(tensor.shape))


_SLOTS = {"accumulate": 1, "scatter": 3}
"""Dimensions in front of sums: slots of chunks, or of chunks, batch entries and heads."""


def _own_slots(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """The memory of sums, once where all programs see it as a slot of their own; other tensors as they are."""
    return tensor[tuple(slice(1 if stride == 0 else None) for stride in tensor.stride()[: _SLOTS.get(kind, 0)])]


def _in_slots(array: Any, tensor: Any, kind: str) -> Any:
    """Sums as the programs of a tiled function see them: in slots of their own, of which some are the same."""
    if not isinstance(tensor, torch.Tensor) or kind not in _SLOTS:
        return array
    count = _SLOTS[kind]
    same = [0 if stride == 0 else own for stride, own in zip(tensor.stride()[:count], array.strides[:count], strict=True)]
    return np.lib.stride_tricks.as_strided(array, tuple(tensor.shape), [*same, *array.strides[count:]])


def _array(value: Any, written: str) -> Any:
    """What a tensor holds, exactly; what is stored begins as NaN, what is added to with what it holds. Numbers stay.

    Of packed sequences the rows that a kernel does not store keep what they hold.
    """
    if isinstance(value, Ragged):
        return _view(_array(value.memory, "accumulate" if value.memory.ndim == 5 else ""))
    if not isinstance(value, torch.Tensor):
        return value
    if written == "store":
        return np.full(tuple(value.shape), np.nan)
    whole = not value.is_floating_point()
    return _own_slots(value.detach(), written).to(torch.int64 if whole else torch.float64).contiguous().numpy().copy()


def _view(array: np.ndarray) -> np.ndarray:
    """The ragged view of an array [1, H, T, ...], or [1, 1, H, T, D], with NaN where its entries lie in front of it."""
    entry = array.ndim == 5
    rows, shape = array.shape[entry + 2], list(array.shape)
    shape[entry + 2] = 2 * rows
    memory = np.full(shape, np.nan)
    steps, first = list(memory.strides), [slice(None)] * (entry + 2)
    memory[(*first, slice(rows, None))] = array
    steps[entry], shape[entry], shape[entry + 2] = steps[entry + 2], rows + 1, rows
    return np.lib.stride_tricks.as_strided(memory, shape, steps)
