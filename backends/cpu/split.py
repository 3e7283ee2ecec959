"""Split-KV: a few queries with long caches see these in parts, on several threads, and a second kernel combines the partial results."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attn_mlir.backends import disk_cache, plain
from attn_mlir.backends.allocation import empty
from attn_mlir.backends.copies import Copies
from attn_mlir.backends.cpu import pipeline
from attn_mlir.backends.cpu.jit import Worker, load_workers
from attn_mlir.backends.cpu.launch import launch
from attn_mlir.backends.cpu.passes.choose_blocks import threads_of
from attn_mlir.backends.cpu.program import SUFFIX, bytecode
from attn_mlir.backends.cpu.target import host
from attn_mlir.backends.program import function_named, reported
from attn_mlir.dialects import load_all
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all, piece, returned_by
from attn_mlir.registry import registry

PART, MOST_PARTS, _STEP = 2048, 64, 64
"""Keys of a part at least, parts at most, and what keys of a part are a multiple of."""
_NAMES = ("attention_parts", "attention_combine")


def parts_of(keys: int, wanted: int = 0) -> tuple[int, int]:
    """How many parts, and how many keys each has; `wanted` parts, or 0: as many as have PART keys, at most MOST_PARTS.

    That follows from the number of keys alone, not from threads, heads or batch, so that the same sequence has the same bits everywhere.
    """
    if not keys:
        return 1, 0
    if wanted:
        length = -(-keys // min(wanted, keys))
    else:
        parts = min(MOST_PARTS, keys // PART)
        if parts < 2:
            return 1, keys
        length = -(-keys // parts)
        length += -length % _STEP
    return -(-keys // length), length


@dataclass(frozen=True)
class SplitSignature:
    """What a caller must know of the two workers of a split attention."""

    block_q: int
    states: int
    threads: int = 0


@dataclass(frozen=True)
class Split:
    """An attention whose keys come in parts."""

    parts: Worker
    combine: Worker
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
        launch(self.parts, qkv, more, (*kinds, "index", "index"), partial, block, copies, threads, entries=rows[0])
        more = (*captures, *partial, count)
        launch(self.combine, qkv, more, (*kinds, *["tensor"] * len(partial), "index"), targets, 1, copies, threads)


def compile_split(source: str, first: str, blocks: Sequence[int], set_blocks: Callable[[ir.Module], None]) -> Split | None:
    """The workers, or None where the row's keys are not seen in parts. `first` leads to online form."""
    key = disk_cache.key_of(
        source, first, "split", str(blocks), pipeline.TILES, pipeline.LLVM, host().name, disk_cache.version("cpu", "tuning")
    )
    with ir.Context() as context:
        load_all(context)
        found = disk_cache.find(key, SUFFIX, _loaded)
        if found is not None:
            return found
        with reported():
            module = ir.Module.parse(source)
            Pipeline.parse(first, registry()).run(module)
            if any(piece(online, "attn.merge") is None or _several(online) for online in find_all(module.operation, "attn.online")):
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
        return Split(workers[_NAMES[0]], workers[_NAMES[1]], signature)


def _several(online: ir.Operation) -> bool:
    """Whether there are several sums of values, or outputs made of one."""
    function = online.parent
    alone = function is not None and list(returned_by(function)) == list(online.results)
    return ir.IntegerAttr(online.attributes["accumulators"]).value != 1 or not alone


def _loaded(code: bytes, facts: dict[str, Any]) -> Split:
    """What is on disk. Raises where that are no workers with their signature."""
    signature = plain.read(SplitSignature, facts)
    if signature.block_q < 1 or min(signature.states, signature.threads) < 0:
        raise ValueError(f"there are no workers with {signature}")
    workers = load_workers(ir.Module.parse(code), _NAMES)
    return Split(workers[_NAMES[0]], workers[_NAMES[1]], signature)
