"""Split-KV: a few queries with long caches see these in parts, on several threads, and a second kernel combines the partial results."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attn_mlir.backends import disk_cache, plain
from attn_mlir.backends.allocation import empty
from attn_mlir.backends.copies import Copies
from attn_mlir.backends.cpu import pipeline
from attn_mlir.backends.cpu.jit import SUFFIX, JitWorker, bytecode, load_workers
from attn_mlir.backends.cpu.launch import launch, launch_grid
from attn_mlir.backends.cpu.passes.choose_blocks import threads_of
from attn_mlir.backends.cpu.slots import SlotGrid
from attn_mlir.backends.cpu.target import host
from attn_mlir.backends.cpu.work import LaunchWork
from attn_mlir.backends.program import function_named, reported
from attn_mlir.dialects import loaded
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.split_kv import COMBINE, PARTS, in_parts
from attn_mlir.registry import registry

NOT_IN_PARTS = (
    "num_splits: keys are not seen in parts where a row takes several passes over them, or has several sums of values; "
    "explain() tells. Leave num_splits out"
)
_NAMES = (PARTS, COMBINE)


@dataclass(frozen=True)
class SplitSignature:
    """What a caller must know of the two workers of a split attention."""

    block_q: int
    states: int
    threads: int = 0


@dataclass(frozen=True)
class SplitAttention:
    """An attention whose keys come in parts."""

    parts: JitWorker
    combine: JitWorker
    signature: SplitSignature

    def run(
        self,
        qkv: Sequence[torch.Tensor],
        captures: Sequence[Any],
        kinds: tuple[str, ...],
        targets: Sequence[torch.Tensor],
        cut: tuple[int, int],
        copies: Copies,
    ) -> None:
        """Computes o and the row outputs, `targets`. `cut`: how many parts, and how many keys each has."""
        q, _, v = qkv
        count, length = cut
        rows = (q.shape[0] * count, *q.shape[1:3])
        score = torch.float64 if q.dtype == torch.float64 else torch.float32
        partial = [empty((*rows, v.shape[3]), dtype=score, device="cpu")]
        partial += [empty(rows, dtype=score, device="cpu") for _ in range(self.signature.states)]
        block, threads = self.signature.block_q, self.signature.threads
        more = (*captures, count, length)
        launch(self.parts, qkv, more, (*kinds, "index", "index"), partial, block, copies=copies, threads=threads, entries=rows[0])
        more = (*captures, *partial, count)
        launch(self.combine, qkv, more, (*kinds, *["tensor"] * len(partial), "index"), targets, 1, copies=copies, threads=threads)

    def run_listed(self, arguments: Sequence[tuple[Any, str]], over: int, work: LaunchWork, targets: Sequence[torch.Tensor]) -> None:
        """The same for packed sequences: `arguments` with their kinds, q as number `over`; `targets` as the kernels see them."""
        parts = work.parts
        if parts is None:
            raise ValueError("work without parts")
        score = torch.float64 if arguments[over][0].dtype == torch.float64 else torch.float32
        shape = (parts.entries, targets[0].shape[1], parts.rows)
        partial = [empty((*shape, targets[0].shape[3]), dtype=score, device="cpu")]
        partial += [empty(shape, dtype=score, device="cpu") for _ in range(self.signature.states)]
        seen = [(work.seen(value) if number == over else value, kind) for number, (value, kind) in enumerate(arguments)]
        threads = self.signature.threads
        launch_grid(self.parts, work.grid, seen, partial, False, threads, work.lists)
        more = [*seen, *((each, "tensor") for each in partial)]
        grid = SlotGrid(1, work.grid.heads, len(parts.combine), 1)
        launch_grid(self.combine, grid, more, targets, False, threads, (parts.combine,))


def with_blocks(blocks: Sequence[int]) -> Callable[[ir.Module], None]:
    """Gives the attention of a module its sizes of blocks."""

    def set_blocks(module: ir.Module) -> None:
        function_named(module, "attention").attributes["tile.blocks"] = ir.DenseI64ArrayAttr.get(list(blocks))

    return set_blocks


def compile_split(source: str, first: str, blocks: Sequence[int], set_blocks: Callable[[ir.Module], None]) -> SplitAttention | None:
    """The workers, or None where the row's keys are not seen in parts. `first` leads to online form."""
    key = disk_cache.key_of(
        source, first, "split", str(blocks), pipeline.TILES, pipeline.LLVM, host().name, disk_cache.version("cpu", "tuning")
    )
    with loaded():
        found = disk_cache.find(key, SUFFIX, _loaded)
        if found is not None:
            return found
        with reported():
            module = ir.Module.parse(source)
            Pipeline.parse(first, registry()).run(module)
            if not all(map(in_parts, find_all(module.operation, "attn.online"))):
                return None
            set_blocks(module)
            Pipeline.parse(f"attn-split-kv,{pipeline.TILES}", registry()).run(module)
            kernel = function_named(module, _NAMES[0])
            sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
            states = len(find_all(kernel, "tile.store")) - 1
            signature = SplitSignature(ir.IntegerAttr(sizes["block_q"]).value, states, threads_of(kernel))
            Pipeline.parse(pipeline.LLVM, registry()).run(module)
        disk_cache.save(key, SUFFIX, bytecode(module), asdict(signature))
        workers = load_workers(module, _NAMES)
        return SplitAttention(workers[_NAMES[0]], workers[_NAMES[1]], signature)


def _loaded(code: bytes, facts: dict[str, Any]) -> SplitAttention:
    """What is on disk. Raises where that are no workers with their signature."""
    signature = plain.read(SplitSignature, facts)
    if signature.block_q < 1 or min(signature.states, signature.threads) < 0:
        raise ValueError(f"there are no workers with {signature}")
    workers = load_workers(ir.Module.parse(code), _NAMES)
    return SplitAttention(workers[_NAMES[0]], workers[_NAMES[1]], signature)
