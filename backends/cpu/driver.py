"""Compiles programs for the CPU and runs them on torch tensors."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attn_mlir.backends import disk_cache, plain
from attn_mlir.backends.allocation import empty
from attn_mlir.backends.cpu import pipeline
from attn_mlir.backends.cpu.jit import Worker, load_workers
from attn_mlir.backends.cpu.launch import launch
from attn_mlir.backends.cpu.program import SUFFIX, bytecode
from attn_mlir.backends.cpu.target import host
from attn_mlir.backends.program import DTYPES, function_named, reported, stages_of
from attn_mlir.dialects import load_all
from attn_mlir.errors import ArgumentError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry

_KERNELS: dict[str, "CpuKernel"] = {}
_COMPILED = {"count": 0}


def compile_count() -> int:
    """How many programs this process has compiled or loaded from the disk cache (not found in memory)."""
    return _COMPILED["count"]


@dataclass(frozen=True)
class Signature:
    """What a caller must know of a compiled worker; kept beside it in the disk cache."""

    block_q: int
    row_outputs: int
    scalars: tuple[str, ...]
    dims: tuple[int, int]
    element: str


class CpuKernel:
    """A program compiled for the CPU.

    Grouped heads with a single query, as in decoding, have a second kernel whose rows are the heads of a group
    (`attn-pack-heads`). It is compiled at the first call with grouped heads, so that no later length compiles anything. Few queries have
    one with smaller blocks, compiled at the first call with them, and a single one of heads that are not grouped has its own.
    """

    def __init__(self, source: str, worker: Worker, signature: Signature) -> None:
        self._source = source
        self._worker = worker
        self._signature = signature
        self._small: dict[tuple[bool, tuple[int, int]], tuple[Worker, Signature]] = {}
        """Kernels for few rows: whether these are heads of a group, not queries, and the sizes of blocks."""

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, captures: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        """See `driver.Kernel.run`."""
        batch, heads, q_len, columns = q.shape[0], q.shape[1], q.shape[2], v.shape[3]
        if (q.shape[3], columns) != self._signature.dims or q.dtype != DTYPES[self._signature.element]:
            raise ArgumentError(
                f"this kernel is for head dimensions {self._signature.dims} and {self._signature.element}, "
                f"got {(q.shape[3], columns)} and {q.dtype}"
            )
        if layout == "bshd":
            o = empty((batch, q_len, heads, columns), dtype=q.dtype, device="cpu").transpose(1, 2)
        else:
            o = empty((batch, heads, q_len, columns), dtype=q.dtype, device="cpu")
        score = torch.float64 if q.dtype == torch.float64 else torch.float32
        rows = [empty((batch, heads, q_len), dtype=score, device="cpu") for _ in range(self._signature.row_outputs)]
        results, worker, signature = [o, *rows], self._worker, self._signature
        if not batch * heads * q_len:
            return results
        targets = results
        grouped = heads != k.shape[1]
        decoder = self._of_few_rows(True, pipeline.FEW_ROWS) if grouped else None
        if decoder is not None and q_len == 1:
            group = heads // k.shape[1]
            q, targets = _group_heads(q, group), [_group_heads(target, group) for target in targets]
            worker, signature = decoder
        elif q_len <= pipeline.FEW_ROWS[0]:
            worker, signature = self._of_few_rows(False, pipeline.ONE_ROW if q_len == 1 else pipeline.FEW_ROWS)
        launch(worker, (q, k, v), captures, signature.scalars, targets, signature.block_q)
        return results

    def _of_few_rows(self, packed: bool, blocks: tuple[int, int]) -> tuple[Worker, Signature]:
        key = packed, blocks
        if key not in self._small:
            with LOCK:
                if key not in self._small:
                    self._small[key] = _compile(self._source, blocks, packed)
        return self._small[key]

    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`."""
        return stages_of(self._source, pipeline.ALL)


def _group_heads(tensor: torch.Tensor, group: int) -> torch.Tensor:
    """A view of [B, Hq, 1, ...] as [B, Hkv, group, ...]."""
    return tensor[:, :, 0].unflatten(1, (-1, group))


def compile_module(source: str) -> CpuKernel:
    """Compiles a module given as text, or finds it in memory or on disk. Raises CompileError."""
    kernel = _KERNELS.get(source)
    if kernel is None:
        kernel = _KERNELS[source] = CpuKernel(source, *_compile(source))
    return kernel


def _compile(source: str, blocks: Sequence[int] = (), pack_heads: bool = False) -> tuple[Worker, Signature]:
    """`blocks` are other block sizes than usual."""
    _COMPILED["count"] += 1
    first = f"attn-pack-heads,{pipeline.ONLINE}" if pack_heads else pipeline.ONLINE
    key = disk_cache.key_of(source, first, str(blocks), pipeline.TILES, pipeline.LLVM, host().name, disk_cache.version("cpu"))
    with ir.Context() as context:
        load_all(context)
        found = disk_cache.find(key, SUFFIX, _loaded)
        if found is not None:
            return found
        module, signature = _lower(source, first, blocks)
        disk_cache.save(key, SUFFIX, bytecode(module), asdict(signature))
        return load_workers(module, ["attention"])["attention"], signature


def _loaded(code: bytes, fields: dict[str, Any]) -> tuple[Worker, Signature]:
    """What is on disk. Raises where that is no worker with its signature."""
    signature = plain.read(Signature, fields)
    if signature.block_q < 1 or signature.row_outputs < 0 or signature.element not in DTYPES:
        raise ValueError(f"there is no worker with {signature}")
    return load_workers(ir.Module.parse(code), ["attention"])["attention"], signature


def _lower(source: str, first: str, blocks: Sequence[int]) -> tuple[ir.Module, Signature]:
    """`first` leads to online form; `blocks` are other block sizes than usual."""
    with reported():
        module = ir.Module.parse(source)
        function = function_named(module, "attention")
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        q, _, v, *arguments = type_.inputs
        scalars = tuple("tensor" if isinstance(argument, ir.RankedTensorType) else str(argument) for argument in arguments)
        row_outputs = len(type_.results) - 1
        Pipeline.parse(first, registry()).run(module)
        if blocks:
            function_named(module, "attention").attributes["tile.blocks"] = ir.DenseI64ArrayAttr.get(blocks)
        Pipeline.parse(pipeline.TILES, registry()).run(module)
        sizes = ir.DictAttr(function_named(module, "attention").attributes["tile.kernel"])
        signature = Signature(ir.IntegerAttr(sizes["block_q"]).value, row_outputs, scalars, (q.shape[3], v.shape[3]), str(q.element_type))
        Pipeline.parse(pipeline.LLVM, registry()).run(module)
        return module, signature
