"""Scheduled kernels on torch tensors of the CPU."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.emulation import EMULATED
from attn_mlir.backends.nvidia.forming.refusal import reasons
from attn_mlir.backends.nvidia.warp import RULES, kernel_code
from attn_mlir.dialects import load_all
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import arguments_of, kernels_of, read_kernel, run_scheduled
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.schedules import drawn
from attn_mlir.registry import registry

_BLOCKS = 2
"""Thread blocks that run at the same time; each takes every second tile, so that loops over tiles are run, too."""
_SEED = 0


def form(function: ir.Operation) -> tuple[str, KernelCode]:
    """The kernel in the `warp` dialect that passes form of a tiled function which `tile-schedule` has left, and its CUDA.

    Raises UnsupportedError, which names what there is no such kernel of.
    """
    text = function.get_asm(print_generic_op_form=True, enable_debug_info=True)
    module = ir.Module.parse(f"module {{\n{text}\n}}", function.context)
    Pipeline.parse(pipeline.SCHEDULE, registry()).run(module)
    kernels = find_all(module.operation, "warp.kernel")
    if not kernels:
        (refused,) = find_all(module.operation, "func.func")
        raise UnsupportedError(refusal(refused))
    return module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True), kernel_code(kernels[0], RULES)


def refusal(function: ir.Operation) -> str:
    """Why passes have formed no kernel of a function, for people."""
    name, why = ir.StringAttr(function.attributes["sym_name"]).value, "; ".join(reasons(function).values())
    return (
        f'device="{EMULATED}" runs kernels of the warp dialect, and none is made of @{name}: {why or "it has no tiles"}. '
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
                (self._kernel,) = kernels_of(self._module)
        self._read: Inst | None = None

    def __call__(self, arguments: Sequence[Any], outputs: Mapping[int, str]) -> None:
        """Runs on the arguments of the tile function, of which those with numbers in `outputs` are written: "store"d, or added to.

        Raises `reference.warp.Fault` where a GPU would hang, race, or read what is not there.
        """
        arrays = [_array(x, outputs.get(n, "")) if isinstance(x, torch.Tensor) else x for n, x in enumerate(arguments)]
        with LOCK, self._context:
            assert len(arguments_of(self._kernel)) - len(arrays) in (0, 1)  # the counter of tiles
            self._read = self._read or read_kernel(self._kernel)
            run_scheduled(self._read, arrays, lambda: drawn(_SEED), _BLOCKS)
        for number in outputs:
            _first_slot(arguments[number]).copy_(torch.from_numpy(arrays[number]).reshape(_first_slot(arguments[number]).shape))


def _first_slot(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of sums that all programs see as a slot of their own, once; other tensors as they are."""
    return tensor[:1] if tensor.ndim == 5 else tensor


def _array(tensor: torch.Tensor, written: str) -> np.ndarray:
    """What a tensor holds, exactly; what is stored begins as NaN, what is added to with what it holds."""
    if written == "store":
        return np.full(tuple(tensor.shape), np.nan)
    whole = not tensor.is_floating_point()
    return _first_slot(tensor.detach()).to(torch.int64 if whole else torch.float64).contiguous().numpy().copy()
