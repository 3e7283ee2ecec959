"""Checks, before a kernel runs, that it reads every captured tensor inside of its bounds.

A plan is made once per program: the index of every read as an expression. For concrete sizes the same interval
analysis that resolves masks tells over which values each index runs. An index that another tensor's elements
determine, such as table[ids[q_idx]], depends on data: it is checked with the least and greatest of those elements.
"""

import dataclasses
import itertools
import re
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from attn_mlir import forks
from attn_mlir.dialects import loaded
from attn_mlir.errors import ArgumentError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.intervals.box import Box
from attn_mlir.passes.intervals.describe import describe
from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.intervals.interval import Interval
from attn_mlir.passes.intervals.nodes import Bound, contains, postorder
from attn_mlir.passes.intervals.read import MaskReader
from attn_mlir.passes.regions import block_of, find_all, pieces, walk

_INPUTS = 3
_OWNERS = ("attn.attention", "attn.online", "attn.linear_attention")
_ROWS = ("b", "h", "q_idx")
_VARIABLES = {
    "attn.query": ("", *_ROWS, "d"),
    "attn.key": ("", "b", "h_kv", "kv_idx", "d"),
    "attn.value": ("", "b", "h_kv", "kv_idx", "dv"),
    "attn.score": ("", *_ROWS, "kv_idx"),
    "attn.mask": (*_ROWS, "kv_idx"),
    "attn.row": ("", *_ROWS),
    "attn.init": _ROWS,
    "attn.step": ("", *_ROWS),
}
_LINEAR_VARIABLES = {
    "attn.query": ("", "b", "h", "t", "d"),
    "attn.key": ("", "b", "h_kv", "t", "d"),
    "attn.value": ("", "b", "h_v", "t", "dv"),
    "attn.decay": ("", "b", "h_v", "t", "d"),
    "attn.skip": ("b", "h_v", "t"),
    "attn.erase": ("", "b", "h_v", "t", "d"),
    "attn.remove": ("", "b", "h_v", "t", "d"),
}
# (accumulators..., b, h, q_idx, states...), and functions of scalars, (scalars..., b, h, q_idx, kv_idx, ...).
_SCALARS_FIRST = {"attn.finalize": _ROWS, "func.func": (*_ROWS, "kv_idx")}


@dataclasses.dataclass(frozen=True)
class CheckedRead:
    """One dimension of one read: `index` must lie in [0, size of `tensor` in `dimension`), or wrap around like Python's."""

    tensor: int
    dimension: int
    index: Bound
    wraps: bool
    from_data: bool


@dataclasses.dataclass(frozen=True)
class ReadPlan:
    """All reads of captured tensors in one program. Captures are numbered from 0, after q, k and v."""

    pool: Pool
    reads: tuple[CheckedRead, ...]
    names: tuple[str, ...]
    by_length: bool = False
    """Whether the length of a sequence of packed tensors determines where something is read."""
    lock: threading.Lock = dataclasses.field(default_factory=forks.lock, repr=False, compare=False)

    @property
    def has_data_checks(self) -> bool:
        """Whether `check_data` has anything to do."""
        return any(read.from_data for read in self.reads)

    def check(self, sizes: Sequence[int], captures: Sequence[Any]) -> None:
        """Raises ArgumentError where a read leaves its tensor. Looks at sizes and scalars only: cache by those.

        `sizes` are B, Hq, Hkv, Sq, Skv, D and Dv, then the heads of v where these are not those of k.
        """
        self._check(sizes, captures, from_data=False)

    def check_data(self, sizes: Sequence[int], captures: Sequence[Any]) -> None:
        """The same for indices that elements of captured tensors determine; waits for the device that holds them."""
        self._check(sizes, captures, from_data=True)

    def _check(self, sizes: Sequence[int], captures: Sequence[Any], from_data: bool) -> None:
        reads = [read for read in self.reads if read.from_data == from_data]
        if not reads or 0 in sizes[:5]:  # without rows or keys nothing is read
            return
        with self.lock, self.pool.scratch():
            box = _Concrete(self._ranges(sizes, captures), captures)
            for read in reads:
                self._check_read(read, box.interval(read.index), captures)

    def _ranges(self, sizes: Sequence[int], captures: Sequence[Any]) -> dict[Bound, Interval]:
        """Every leaf with its numbers."""
        b, hq, hkv, sq, skv, d, dv, hv = (*sizes, sizes[2])[:8]
        extents = {"b": b, "h": hq, "h_kv": hkv, "h_v": hv, "q_idx": sq, "kv_idx": skv, "t": sq, "d": d, "dv": dv}
        shapes = [(b, hq, sq, d), (b, hkv, skv, d), (b, hv, skv, dv)]
        ranges = {}
        for node in postorder([read.index for read in self.reads]):
            match node.op:
                case "var":
                    ranges[node] = Interval(self.pool.lift(0), self.pool.lift(extents[node.data] - 1))
                case "dim":
                    tensor, dimension = node.data
                    shape = shapes[tensor] if tensor < _INPUTS else captures[tensor - _INPUTS].shape
                    ranges[node] = _point(self.pool, shape[dimension])
                case "value":
                    ranges[node] = _point(self.pool, captures[node.data - _INPUTS])
        return ranges

    def _check_read(self, read: CheckedRead, interval: Interval, captures: Sequence[Any]) -> None:
        size = int(captures[read.tensor].shape[read.dimension])
        where = f"captured tensor '{self.names[read.tensor]}'"
        index = describe(read.index, lambda position: self._name(position))
        low, high = (None if end is None else end.constant for end in interval)
        if low is None or high is None:
            raise ArgumentError(
                f"{where} is read at {index} in dimension {read.dimension}, whose range is not known; bound it with .clamp(0, {size - 1})."
            )
        if low < (-size if read.wraps else 0) or high >= size:
            moves = any(n.op == "var" and n.data in ("q_idx", "kv_idx") for n in postorder([read.index]))
            advice = " Masked positions are read as well: if only those are outside, bound the index with .clamp()." if moves else ""
            cause = "with these elements " if read.from_data else ""
            raise ArgumentError(
                f"{where} has size {size} in dimension {read.dimension}, "
                f"but is read at {index}, which {cause}runs over {low}..{high}.{advice}"
            )

    def _name(self, position: Hashable) -> str:
        if not isinstance(position, int):
            return "a computed index"
        return "qkv"[position] if position < _INPUTS else self.names[position - _INPUTS]


def _point(pool: Pool, value: Any) -> Interval:
    node = pool.lift(int(value))
    return Interval(node, node)


@dataclasses.dataclass
class _Concrete(Box):
    """A box of numbers; elements of captured tensors are looked up."""

    captures: Sequence[Any] = ()

    def _gather(self, node: Bound) -> Interval:
        tensor = self.captures[node.data - _INPUTS]
        pool = node.pool
        if str(tensor.dtype) == "torch.bool":
            return Interval(pool.lift(0), pool.lift(1))
        part = tensor
        for dimension, index in enumerate(node.args):
            low, high = (None if end is None else end.constant for end in self.interval(index))
            size = tensor.shape[dimension]
            begin = 0 if low is None else min(max(low, 0), max(size - 1, 0))
            end = size if high is None else min(max(high + 1, begin + 1), size)
            part = part.narrow(dimension, begin, end - begin)
        if part.numel() == 0:
            return Interval(None, None)
        least, most = part.aminmax()
        return Interval(pool.lift(int(least)), pool.lift(int(most)))


def make_plan(module: ir.Module | ir.Operation | str, names: Sequence[str] = ()) -> ReadPlan:
    """The plan of a stage 0 (or online) module; `names` are the captures' names where the module does not tell them."""
    if isinstance(module, str):
        header = re.search(r"func\.func[^(]*\(([^{]*)", module)
        written = re.findall(r"%([A-Za-z_]\w*)\s*:", header.group(1))[_INPUTS:] if header else []
        with LOCK, loaded():
            parsed = ir.Module.parse(module)
            return make_plan(parsed, names or ([] if any(re.fullmatch(r"arg\d+", n) for n in written) else written))
    pool, reads = Pool(), []
    found, lengths = ["", "", ""], set[int]()
    for attention in find_all(module.operation, *_OWNERS):
        arguments = list(attention.block.arguments)
        found = [_argument_name(a, i) for i, a in enumerate(arguments)]
        given = [*pieces(attention, "attn.sequences"), *pieces(attention, "attn.key_lists")]
        own = {arguments.index(tensor) for op in given for tensor in op.operands}
        lengths |= own
        for piece in [op.operation for op in block_of(attention).operations if len(op.operation.regions)]:
            reads += [read for read in _reads(pool, piece, arguments) if read.tensor + _INPUTS not in own]
    for function in find_all(module.operation, "func.func"):
        if not find_all(function, *_OWNERS):  # a function of scalars: its last arguments are the attention's
            reads += _reads(pool, function, list(block_of(function).arguments)[-len(found) :])
    by_length = any(n.op == "gather" and n.data in lengths for n in postorder([read.index for read in reads]))
    return ReadPlan(pool, tuple(dict.fromkeys(reads)), tuple(names or found[_INPUTS:]), by_length)


def _argument_name(argument: ir.Value, position: int) -> str:
    location = argument.location
    return location.name_str if isinstance(location, ir.NameLoc) else str(position - _INPUTS)


def _reads(pool: Pool, piece: ir.Operation, arguments: Sequence[ir.Value]) -> Iterator[CheckedRead]:
    """Every dimension of every tensor.extract in `piece`."""
    positions: Mapping[ir.Value, int] = {argument: i for i, argument in enumerate(arguments)}
    fresh = itertools.count()
    owner = piece.parent
    linear = owner is not None and owner.name == "attn.linear_attention"
    names = (_LINEAR_VARIABLES if linear else _VARIABLES).get(piece.name, ())
    names = _SCALARS_FIRST.get(piece.name, names)
    indices = [argument for argument in block_of(piece).arguments if isinstance(argument.type, ir.IndexType)]
    known = {argument: pool.leaf("var", name, 0) for argument, name in zip(indices, filter(None, names), strict=False)}
    reader = MaskReader(pool, known, lambda value: positions.get(value, ("unknown", piece.name, next(fresh))), sized=arguments[:_INPUTS])
    reader.read_all(block_of(piece))
    for op in [op for op in walk(piece) if op.name == "tensor.extract"]:
        tensor = positions.get(op.operands[0])
        if tensor is None or tensor < _INPUTS:
            continue
        for dimension, operand in enumerate(list(op.operands)[1:]):
            index = reader.read(operand)
            unwrapped = _unwrapped(index, reader.size(op.operands[0], dimension))
            plain = index if unwrapped is None else unwrapped
            yield CheckedRead(tensor - _INPUTS, dimension, plain, unwrapped is not None, contains(plain, "gather"))


def _unwrapped(index: Bound, size: Bound) -> Bound | None:
    """The i of `i + size if i < 0 else i`, which is how Python's negative indices arrive."""
    if index.op != "select" or index.args[0].op != "ge0":
        return None
    condition, a, b = index.args
    return b if condition.args[0] is -b - 1 and a - b is size else None
