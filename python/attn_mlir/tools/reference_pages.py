"""Pages of docs/reference, of at most 200 lines: which ops and which passes each of them describes."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Page(NamedTuple):
    """A page beside the index of its dialect, or of the passes."""

    file: str
    title: str
    members: tuple[str, ...]
    """Modules of a dialect; of passes, what their names begin with."""


DIALECTS = {
    "attn": (
        Page("attention", "attention and its pieces", ("ops", "pieces")),
        Page("scalars", "scalars inside pieces", ("scalar",)),
        Page("keys", "where keys lie, and parts of them", ("sequences", "pages", "key_lists", "parts")),
        Page("derivatives", "derivatives of attention", ("pairs",)),
        Page("sums", "sums over pairs and elements", ("sums",)),
        Page("linear", "linear attention", ("linear", "linear_erase")),
        Page("linear-pieces", "pieces of linear attention", ("linear_pieces",)),
        Page("segments", "segments of linear attention", ("linear_segments",)),
    ),
    "tile": (
        Page("compute", "computation on tiles", ("compute",)),
        Page("memory", "global memory", ("memory", "accumulate")),
        Page("captured", "tiles of captured tensors, and decays", ("windows", "decays")),
    ),
    "warp": (
        Page("structure", "roles and tiles of a kernel", ("structure",)),
        Page("barriers", "barriers", ("barriers",)),
        Page("copies", "asynchronous copies", ("copies",)),
        Page("windows", "windows of captured tensors, rows in pages", ("windows", "pages")),
        Page("products", "products, and computation on fragments", ("products", "fragments")),
        Page("memory", "shared and global memory", ("memory", "rows")),
        Page("columns", "what lanes and warps share", ("columns",)),
    ),
}
_LOADS = ("warp-pipeline-", "warp-prefetch-", "warp-stage-", "warp-draw-", "warp-delay-", "warp-overlap-", "warp-order-products")
_SCORES = (
    "warp-defer-",
    "warp-read-",
    "warp-stale-",
    "warp-conditional-",
    "warp-merge-",
    "warp-reverse-",
    "warp-bound-",
    "warp-scale-",
    "warp-slope-",
    "warp-hold-",
    "warp-round-",
    "warp-split-maps",
)
PASSES = (
    Page("derivatives", "Derivatives", ("attn-differentiate", "attn-cut-", "attn-split-passes", "attn-custom-", "attn-recover-")),
    Page("tiling", "From attention to tiles", ("attn-tile-", "attn-choose-", "attn-expand-dropout", "tile-")),
    Page("attention", "Attention before tiling", ("attn-",)),
    Page("gpu", "Arithmetic of pairs on GPUs", ("gpu-",)),
    Page("cpu", "The CPU backend", ("cpu-",)),
    Page("amd", "The AMD backend", ("amd-",)),
    Page("nvidia", "The NVIDIA backend", ("nvidia-",)),
    Page("warp-loads", "Pipelines of the warp dialect", _LOADS),
    Page("warp-scores", "Scores and maxima in the warp dialect", _SCORES),
    Page("warp", "Kernels of the warp dialect", ("warp-",)),
)
"""The first page one of whose beginnings a name has describes it."""


def pages_of_ops(dialect: str, ops: Sequence[Any]) -> Iterator[tuple[Page, list[list[Any]]]]:
    """Each page of a dialect, with the ops of each of its modules, by name."""
    by_module: dict[str, list[Any]] = {}
    for op in sorted(ops, key=lambda op: op.OPERATION_NAME):
        by_module.setdefault(op.__module__.rpartition(".")[2], []).append(op)
    missing = set(by_module).difference(*[page.members for page in DIALECTS[dialect]])
    if missing:
        raise ValueError(
            f"{dialect}/{min(missing)}.py has ops, and is on no page of attn_mlir.tools.reference_pages.DIALECTS: put it on one"
        )
    for page in DIALECTS[dialect]:
        yield page, [by_module[member] for member in page.members]


def pages_of_passes(names: Sequence[str]) -> Iterator[tuple[Page, list[str]]]:
    """Each page of passes, with the names of its passes in the given order."""
    place = {name: next(page for page in PASSES if name.startswith(page.members)) for name in names}
    for page in PASSES:
        yield page, [name for name in names if place[name] is page]
