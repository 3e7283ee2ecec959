"""`visualize(mask_mod=...)`: what the compiler's analysis of a mask says about every block, without looking at positions."""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from attn_mlir.api.given_masks import Mask, is_block_mask, sizes_of, with_function
from attn_mlir.api.mask_strings import parse
from attn_mlir.api.rows import softmax
from attn_mlir.dialects import loaded
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.cache import Entry, TraceCache
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.intervals.classify import Blocks
from attn_mlir.passes.intervals.survey import survey
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import block_of, find_all, is_constant, piece
from attn_mlir.registry import registry
from attn_mlir.runtime.programs import program_of
from attn_mlir.seeing.panels import Panel, Scores
from attn_mlir.seeing.picture import MaskPicture, names

_CACHE = TraceCache()
_INPUTS = Inputs("f64", 1, 1)
_RESOLVE = "attn-simplify,attn-resolve-masks"
_SAMPLES = 96
_LONGEST = 1 << 31
_PANELS = 16


def visualize(
    mask_mod: Mask = None,
    score_mod: Callable[..., Any] | None = None,
    *,
    q_len: int | None = None,
    kv_len: int | None = None,
    b: int | Sequence[int] = 0,
    h: int | Sequence[int] = 0,
    num_heads: int | None = None,
    block_size: int | tuple[int, int] | None = None,
    score: float = 0.0,
) -> MaskPicture:
    """The blocks that a mask skips, keeps whole or decides in, and the bounds of the loop over keys of each row of blocks.

    They come from the analysis that the compiler itself makes of the mask (docs/masks.md): no position is looked at, so that a million
    queries and keys take about a second. `str()` of the result is for terminals, notebooks show it as SVG, `.save("x.svg")` writes it.

    mask_mod: mask_mod(b, h, q_idx, kv_idx), a string such as "t:128,0", a BlockMask, or None, with everything kept. score_mod: also
    sampled, at the middle of up to 96 x 96 equal parts: what it makes of `score`.
    q_len, kv_len: numbers of queries and keys; kv_len is q_len where it is not given, and a BlockMask knows its own.
    b, h: the batch entries and heads to show, 16 together at most. num_heads: how many heads there are, for functions that ask for it.
    block_size: of queries and of keys, by default (128, 128), or those of the BlockMask.

    Raises ArgumentError for sizes that are none, and for captured tensors that are too small for them; TraceError as `attention` does.
    """
    name = names({"mask": _shown(mask_mod), "score": score_mod})
    sizes, block = _sizes(mask_mod, q_len, kv_len), _block(mask_mod, block_size)
    at = [(i, j) for i in _numbers("b", b) for j in _numbers("h", h)]
    if len(at) > _PANELS:
        raise ArgumentError(f"a picture shows {_PANELS} heads at most, got {len(at)}: choose some of them with b= and h=")
    if isinstance(mask_mod, str):
        mask_mod = parse(mask_mod)
    _, _, _, _, mask_mod, _ = with_function((None, None, None, None, mask_mod, None))
    batch, heads = 1 + max(i for i, _ in at), 1 + max(j for _, j in at)
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        raise ArgumentError(f"score is a number, what score_mod makes of it is shown; got {score!r}")
    if num_heads is not None and num_heads < heads:
        raise ArgumentError(f"h={heads - 1} is no head of num_heads={num_heads}")
    problem = {"B": batch, "Hq": num_heads or heads, "Hkv": num_heads or heads, "Sq": sizes[0], "Skv": sizes[1], "D": 1, "Dv": 1}
    scores = _sampled(score_mod, problem, at, score, num_heads) if score_mod is not None else [None] * len(at)
    entry, captures = _traced((None, None, None, None, mask_mod, softmax), problem)
    with LOCK, loaded():
        module = ir.Module.parse(entry.traced.text)
        Pipeline.parse(_RESOLVE, registry()).run(module)
        _check_heads(module, num_heads)
        panels = []
        for (i, j), sampled in zip(at, scores, strict=True):
            blocks = Blocks(module.operation, captures, sizes, block, batch, problem["Hq"], at=(i, j))
            panels.append(Panel(i, j, survey(blocks, sizes[1], block), sampled))
    return MaskPicture(name, *sizes, block, tuple(panels))


def _traced(functions: tuple[Any, ...], problem: dict[str, int]) -> tuple[Entry, list[Any]]:
    """The trace of functions, and what they capture as numpy arrays; checked as a call of that size would."""
    query_mod, key_mod, value_mod, score_mod, mask_mod, row = functions
    form = Definition(row, score_mod, mask_mod, query_mod, key_mod, value_mod, 1.0)
    entry, scan = _CACHE.find(functions, "visualize", lambda: trace(form, _INPUTS))
    captures = entry.captures(scan, 0.0, MappingProxyType({}))
    devices = [value.device for value in captures if isinstance(value, torch.Tensor)]
    program_of(entry).check(captures, problem, devices[0] if devices else torch.device("cpu"))
    return entry, [_array(value) for value in captures]


def _array(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach().cpu()
    return (value.double() if value.is_floating_point() else value).numpy()


def _sampled(
    score_mod: Callable[..., Any], problem: dict[str, int], at: Sequence[tuple[int, int]], score: float, num_heads: int | None
) -> list[Scores | None]:
    from attn_mlir.reference.interpreter import SHARED_RULES, EvaluationFrame

    entry, captures = _traced((None, None, None, score_mod, None, softmax), problem)
    with LOCK, loaded():
        module = ir.Module.parse(entry.traced.text)
        _check_heads(module, num_heads)
        owner = find_all(module.operation, "attn.attention")[0]
        found = piece(owner, "attn.score")
        lengths = [np.broadcast_to(0.0, (problem["B"], problem["Hq"], problem[size], 1)) for size in ("Sq", "Skv", "Skv")]
        values = dict(zip(owner.block.arguments, [*lengths, *captures], strict=True))
        q_idx, kv_idx = (_middles(problem[size]) for size in ("Sq", "Skv"))
        made: list[Scores | None] = []
        for b, h in at:
            frame = EvaluationFrame(dict(values), SHARED_RULES)
            for op in [view.operation for view in owner.block.operations]:
                if op == owner:
                    break
                frame.values.update(zip(op.results, frame.execute(op, [frame.values[x] for x in op.operands]), strict=True))
            result = np.float64(score)
            if found is not None:
                with np.errstate(all="ignore"):  # where a function divides by 0, the picture shows what comes of it
                    (result,) = frame.run(block_of(found), [np.asarray(x) for x in (float(score), b, h, q_idx[:, None], kv_idx[None, :])])
            made.append(Scores(np.array(np.broadcast_to(result, (len(q_idx), len(kv_idx))), np.float64), score))
    return made


def _middles(length: int) -> Any:
    """The position in the middle of each of as many equal parts as are sampled."""
    count = min(length, _SAMPLES)
    return ((2 * np.arange(count) + 1) * length) // (2 * count)


def _check_heads(module: ir.Module, num_heads: int | None) -> None:
    """Raises ArgumentError where a function asks for the number of heads, and it is not given."""
    if num_heads is not None:
        return
    for op in find_all(module.operation, "tensor.dim"):
        source, dimension = op.operands
        of_query = isinstance(source, ir.BlockArgument) or isinstance(source.owner, ir.Block)
        if of_query and ir.BlockArgument(source).arg_number == 0 and is_constant(dimension):
            if ir.IntegerAttr(dimension.owner.attributes["value"]).value == 1:
                raise ArgumentError("the function asks for num_heads(): pass num_heads=")


def _shown(mask: Any) -> Any:
    """What a mask is called by: its function, or the string."""
    return mask.mask_mod if is_block_mask(mask) else mask


def _sizes(mask: Any, q_len: int | None, kv_len: int | None) -> tuple[int, int]:
    known = sizes_of(mask) if is_block_mask(mask) else None
    if known is not None:
        given = [size for size, own in ((q_len, known[2]), (kv_len, known[3])) if size is not None and size != own]
        if given:
            raise ArgumentError(f"the block mask is for {known[2]} queries and {known[3]} keys, got {given[0]}: leave q_len and kv_len out")
        q_len, kv_len = known[2], known[3]
    if q_len is None:
        raise ArgumentError("visualize needs q_len, the number of queries (kv_len is the same where it is not given)")
    return _size("q_len", q_len), _size("kv_len", q_len if kv_len is None else kv_len)


def _block(mask: Any, given: Any) -> tuple[int, int]:
    if given is None:
        own = getattr(mask, "block", None) or getattr(mask, "BLOCK_SIZE", None) if is_block_mask(mask) else None
        given = own if own is not None and max(own) < 1 << 30 else 128
    rows, columns = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, given)
    return _size("block_size", rows), _size("block_size", columns)


def _size(name: str, size: Any) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size < _LONGEST:
        raise ArgumentError(f"{name} is a positive number below 2^31, got {size!r}")
    return size


def _numbers(name: str, given: Any) -> list[int]:
    numbers = list(given) if isinstance(given, (tuple, list, range)) else [given]
    if not numbers or any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in numbers):
        raise ArgumentError(f"{name} is a number from 0 on, or several of them, got {given!r}")
    return numbers
