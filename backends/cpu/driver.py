"""Compiles programs for the CPU and runs them on torch tensors."""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from attn_mlir.backends import disk_cache, fields, plain
from attn_mlir.backends.allocation import empty, empty_heads
from attn_mlir.backends.copies import Copies
from attn_mlir.backends.cpu import pipeline
from attn_mlir.backends.cpu.jit import SUFFIX, JitWorker, bytecode, load_workers
from attn_mlir.backends.cpu.launch import launch, readable
from attn_mlir.backends.cpu.parts import parts_of
from attn_mlir.backends.cpu.passes.choose_blocks import TUNED, threads_of
from attn_mlir.backends.cpu.program import CpuLaunchPlan, build_derivative, without_tiles
from attn_mlir.backends.cpu.split import NOT_IN_PARTS, SplitAttention, compile_split
from attn_mlir.backends.cpu.target import host
from attn_mlir.backends.cpu.tuning.model import MOST_KEYS
from attn_mlir.backends.program import DTYPES, function_named, products_of, reported, stages_of
from attn_mlir.backends.tuning.space import number
from attn_mlir.dialects import loaded
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry

PARTNERS = 'partner = "'
"""In a program some of whose mods read other channels; see `attn.query`."""
SEQUENCES = '"attn.sequences"'
"""In a program on packed tensors."""
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
    threads: int = 0
    """On how many threads at most it runs; 0: on all."""
    products: tuple[tuple[int, int], ...] = ()
    """The captures that further products multiply: tensors of queries and of keys."""
    weights: int = 1
    """How many tensors shaped as o there are, before the row outputs."""
    output: str = ""
    """The element type of o where that is not the inputs'."""


class CpuKernel:
    """A program compiled for the CPU.

    Grouped heads with a single query, as in decoding, have a second kernel whose rows are the heads of a group
    (`attn-pack-heads`). It is compiled at the first call with grouped heads, so that no later length compiles anything. Few queries have
    one with smaller blocks, compiled at the first call with them, and a single one of heads that are not grouped has its own.

    Few queries see long caches in parts (`split.parts_of`), by kernels that are compiled at the first call with as many keys.

    Where mods read other channels, these change queries and keys on the way; for more queries a `program` does so before
    (`attn-apply-mods`).
    """

    def __init__(self, source: str, worker: JitWorker | None, signature: Signature, program: CpuLaunchPlan | None = None) -> None:
        self._source = source
        self._worker = worker
        self._program = program
        self._signature = signature
        self._copies = Copies()
        self._small: dict[tuple[bool, tuple[int, int]], tuple[JitWorker, Signature]] = {}
        """Kernels for few rows: whether these are heads of a group, not queries, and the sizes of blocks."""
        self._split: dict[tuple[bool, tuple[int, int]], SplitAttention | None] = {}
        """The same with the keys in parts; None where the row does not allow that."""
        self._splits = 0
        """How many parts keys are in; 0: as `parts_of` chooses."""

    def with_splits(self, splits: int) -> "CpuKernel":
        """The same kernel, which sees keys in so many parts; 0: chosen by their number, 1: in one pass."""
        made = copy.copy(self)
        made._splits = splits
        return made

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, captures: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        """See `driver.Kernel.run`."""
        batch, heads, q_len, columns = q.shape[0], q.shape[1], q.shape[2], v.shape[3]
        if (q.shape[3], columns) != self._signature.dims or q.dtype != DTYPES[self._signature.element]:
            raise ArgumentError(
                f"this kernel is for head dimensions {self._signature.dims} and {self._signature.element}, "
                f"got {(q.shape[3], columns)} and {q.dtype}"
            )
        if self._program is not None and batch * heads * k.shape[2] and q_len > pipeline.FEW_ROWS[0]:
            return self._program.run((q, k, v, *captures), layout)
        shape, dtype = (batch, heads, q_len, columns), DTYPES[self._signature.output or self._signature.element]
        worker, signature = self._worker, self._signature
        # Most calls want one o and nothing else; a comprehension is a call of its own before Python 3.12.
        results = [empty(shape, dtype=dtype, device="cpu") if layout == "bhsd" else empty_heads(shape, dtype, layout, "cpu")]
        if signature.weights > 1:
            results += [empty_heads(shape, dtype, layout, "cpu") for _ in range(signature.weights - 1)]
        if signature.row_outputs:
            score = torch.float64 if q.dtype == torch.float64 else torch.float32
            results += [empty((batch, heads, q_len), dtype=score, device="cpu") for _ in range(signature.row_outputs)]
        queries = [captures[i] for i, _ in signature.products] if signature.products else ()
        few: tuple[bool, tuple[int, int]] | None = None
        if not batch * heads * q_len:
            return results
        targets = results
        grouped = heads != k.shape[1]
        decoder = self._of_few_rows(True, pipeline.FEW_ROWS) if grouped else None
        if decoder is not None and q_len == 1:
            group = heads // k.shape[1]
            q, targets = _group_heads(q, group), [_group_heads(target, group) for target in targets]
            queries = [_group_heads(query, group) for query in queries]
            worker, signature = decoder
            few = True, pipeline.FEW_ROWS
        elif worker is None or q_len <= pipeline.FEW_ROWS[0]:
            few = False, pipeline.ONE_ROW if q_len == 1 else pipeline.FEW_ROWS
            worker, signature = self._of_few_rows(*few)
        cut = (1, 0) if few is None else parts_of(k.shape[2], self._splits)
        if self._splits > 1 and q_len > pipeline.FEW_ROWS[0]:
            raise UnsupportedError(f"num_splits is for {pipeline.FEW_ROWS[0]} queries at most, got {q_len}: leave it out")
        split = None if few is None or cut[0] == 1 else self._of_parts(*few)
        if queries:
            captures = _with_products(captures, queries, signature.products)
        if split is not None:
            split.run((q, k, v), captures, signature.scalars, targets, cut, self._copies)
            return results
        launch(worker, (q, k, v), captures, signature.scalars, targets, signature.block_q, copies=self._copies, threads=signature.threads)
        return results

    @property
    def copies(self) -> dict[str, str]:
        """Why some of q, k and v were copied, by their names."""
        return self._copies.notes if self._program is None else {**self._program.copies, **self._copies.notes}

    @property
    def without_tiles(self) -> dict[str, str]:
        """Why kernels do not use the matrix tiles that the machine has, by their names."""
        return without_tiles(self._source, pipeline.ONLINE, pipeline.TILES) if self._program is None else self._program.without_tiles

    def _of_few_rows(self, packed: bool, blocks: tuple[int, int]) -> tuple[JitWorker, Signature]:
        key = packed, blocks
        if key not in self._small:
            with LOCK:
                if key not in self._small:
                    self._small[key] = _compile(self._source, blocks, packed)
        return self._small[key]

    def _of_parts(self, packed: bool, blocks: tuple[int, int]) -> SplitAttention | None:
        key = packed, blocks
        if key not in self._split:
            with LOCK:
                if key not in self._split:
                    first = f"attn-pack-heads,{pipeline.ONLINE}" if packed else pipeline.ONLINE
                    self._split[key] = compile_split(self._source, first, blocks, lambda module: _set_blocks(module, blocks, packed))
        if self._split[key] is None and self._splits > 1:
            raise UnsupportedError(NOT_IN_PARTS)
        return self._split[key]

    def stages(self) -> dict[str, str]:
        """See `driver.Kernel.stages`."""
        return stages_of(self._source, pipeline.ALL) if self._program is None else self._program.stages()


def _group_heads(tensor: torch.Tensor, group: int) -> torch.Tensor:
    """A view of [B, Hq, 1, ...] as [B, Hkv, group, ...]."""
    return tensor[:, :, 0].unflatten(1, (-1, group))


def _with_products(captures: Sequence[Any], queries: Sequence[torch.Tensor], products: Sequence[tuple[int, int]]) -> list[Any]:
    """The captures with these query tensors; those of products are read by tiles, as q and k are."""
    changed = list(captures)
    for query, (i, j) in zip(queries, products, strict=True):
        changed[i], changed[j] = readable(query, True), readable(changed[j], True)
    return changed


def compile_module(source: str) -> CpuKernel:
    """Compiles a module given as text, or finds it in memory or on disk. Raises CompileError."""
    kernel = _KERNELS.get(source)
    if kernel is None:
        kernel = _KERNELS[source] = build_kernel(source)
    return kernel


def build_kernel(source: str) -> CpuKernel:
    """The same without a place in memory: for a program that is tried."""
    if SEQUENCES in source:
        raise UnsupportedError("packed sequences have lists of work, which a kernel by itself does not make: use driver.compile_derivative")
    if PARTNERS not in source:
        return CpuKernel(source, *_compile(source))
    with reported(), loaded():
        signature = _signature(ir.Module.parse(source))
    return CpuKernel(source, None, signature, build_derivative(source, "", ()))


def _compile(source: str, blocks: Sequence[int] = (), pack_heads: bool = False) -> tuple[JitWorker, Signature]:
    """`blocks` are other block sizes than usual."""
    _COMPILED["count"] += 1
    first = f"attn-pack-heads,{pipeline.ONLINE}" if pack_heads else pipeline.ONLINE
    key = disk_cache.key_of(source, first, str(blocks), pipeline.TILES, pipeline.LLVM, host().name, disk_cache.version("cpu", "tuning"))
    with loaded():
        found = disk_cache.find(key, SUFFIX, _loaded)
        if found is not None:
            return found
        module, signature = _lower(source, first, blocks)
        disk_cache.save(key, SUFFIX, bytecode(module), asdict(signature))
        return load_workers(module, ["attention"])["attention"], signature


def _loaded(code: bytes, facts: dict[str, Any]) -> tuple[JitWorker, Signature]:
    """What is on disk. Raises where that is no worker with its signature."""
    signature = plain.read(Signature, facts)
    counts = min(signature.block_q, signature.weights), min(signature.row_outputs, signature.threads)
    if counts[0] < 1 or counts[1] < 0 or signature.element not in DTYPES:
        raise ValueError(f"there is no worker with {signature}")
    return load_workers(ir.Module.parse(code), ["attention"])["attention"], signature


def _lower(source: str, first: str, blocks: Sequence[int]) -> tuple[ir.Module, Signature]:
    """`first` leads to online form; `blocks` are other block sizes than usual."""
    with reported():
        module = ir.Module.parse(source)
        signature = _signature(module)
        Pipeline.parse(first, registry()).run(module)
        if blocks:
            _set_blocks(module, blocks, first.startswith("attn-pack-heads"))
        Pipeline.parse(pipeline.TILES, registry()).run(module)
        sizes = ir.DictAttr(function_named(module, "attention").attributes["tile.kernel"])
        threads = threads_of(function_named(module, "attention"))
        signature = replace(signature, block_q=ir.IntegerAttr(sizes["block_q"]).value, threads=threads)
        Pipeline.parse(pipeline.LLVM, registry()).run(module)
        return module, signature


def _signature(module: ir.Module) -> Signature:
    """That of a program at stage 0, before there are blocks."""
    function = function_named(module, "attention")
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    q, _, v, *arguments = type_.inputs
    scalars = tuple("tensor" if isinstance(argument, ir.RankedTensorType) else str(argument) for argument in arguments)
    weights = sum(result.rank == 4 for result in type_.results)
    dims, rows = (q.shape[3], v.shape[3]), len(type_.results) - weights
    element, output = (str(ir.RankedTensorType(x).element_type) for x in (q, type_.results[0]))
    products = products_of(function)
    return Signature(0, rows, scalars, dims, element, products=products, weights=weights, output="" if output == element else output)


def _set_blocks(module: ir.Module, blocks: Sequence[int], packed: bool) -> None:
    """Gives a kernel of few rows its blocks, and of what was tuned for it the keys of a block and the threads."""
    function = function_named(module, "attention")
    choices = fields.tuned_in(module.operation, TUNED).get(f"attention@{variant_of(blocks[0], packed)}", {})
    keys = number(choices, "block_kv", blocks[1])
    if keys < 16 or keys % 16 or keys > MOST_KEYS or number(choices, "threads", 1) < 1:
        raise CompileError(f"'{TUNED}' holds a multiple of 16 up to {MOST_KEYS} as block_kv, and a positive number of threads: {choices}")
    function.attributes["tile.blocks"] = ir.DenseI64ArrayAttr.get([blocks[0], keys])
    if "threads" in choices:
        function.attributes[fields.CHOICES] = fields.write({"threads": choices["threads"]})


def variant_of(rows: int, packed: bool) -> str:
    """The name that a kernel of few rows has among tuned choices: its rows are heads of a group, one query, or few."""
    return "group" if packed else "one" if rows == 1 else "few"
