"""Random inputs for a function, made to its signature."""

import dataclasses
import math

import numpy as np

from attn_mlir.dialects.attn.linear_recurrence import state_shape
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, pieces
from attn_mlir.passes.sequences import packing_of
from attn_mlir.reference.evaluator import find_function
from attn_mlir.reference.linear import OPS as LINEAR
from attn_mlir.reference.linear import named_operands
from attn_mlir.reference.listed import draw_lists
from attn_mlir.reference.scalar import Array, element_type, round_to
from attn_mlir.reference.tiles import inputs_of

_MOST = 1 << 33
"""Elements of a tensor, of which there are several in memory."""
_SEQUENCES = 3
_PAGE = 4
"""Keys of a page."""
_KEYS = ("erase_key", "removed_key", "written_key")
_FURTHER = (*_KEYS, "written_value")
"""What the delta rule takes besides."""
_Shapes = dict[int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What the dynamic dimensions of an attention become."""

    batch: int = 2
    heads: int = 4
    kv_heads: int = 2
    q_len: int = 17
    kv_len: int = 23

    def __str__(self) -> str:
        return f"B={self.batch} Hq={self.heads} Hkv={self.kv_heads} Sq={self.q_len} Skv={self.kv_len}"


@dataclasses.dataclass(frozen=True)
class InputMaker:
    """Draws the arguments of a function."""

    sizes: Sizes = Sizes()
    seed: int = 0
    integers: tuple[int, int] = (0, 4)
    """Integer tensors are drawn from [low, high)."""
    index: int = 3
    """What index scalars are."""
    capture_size: int | None = None
    """The size of every dynamic dimension of a captured tensor; by default enough for any position or head."""

    def make(self, module: ir.Module | ir.Operation | ir.OpView, function: str = "attention") -> list[Array]:
        """q, k, v and the captures of `function`."""
        func = find_function(module, function)
        types = [argument.type for argument in func.regions[0].blocks[0].arguments][: inputs_of(func)]
        rng = np.random.default_rng(self.seed)
        linear = find_all(func, *LINEAR)
        if linear:
            return self._linear(rng, linear[0], list(func.regions[0].blocks[0].arguments))
        s, arguments = self.sizes, list(func.regions[0].blocks[0].arguments)
        of_queries, of_keys = (s.batch, s.heads, s.q_len), (s.batch, s.kv_heads, s.kv_len)
        leading = {0: of_queries, 1: of_keys, 2: of_keys}
        for op in find_all(func, "attn.product", "attn.term"):
            rows = [of_queries, of_keys] if op.name == "attn.product" else [of_keys]
            leading |= {arguments.index(x): size for x, size in zip(op.operands, rows, strict=True) if x in arguments}
        packed = self._sequences(rng, func, arguments)
        if packed:
            leading = {i: (1, *shape[1:]) for i, shape in leading.items()} | self._pages(rng, func, arguments, packed)
        known = packed or self._lists(rng, func, arguments)
        sizes = {i: leading[i] if i in leading else self._named(arguments[i]) for i in range(len(types))}
        return [known[i] if i in known else self._draw(rng, type_, sizes[i]) for i, type_ in enumerate(types)]

    def _lists(self, rng: np.random.Generator, func: ir.Operation, arguments: list[ir.Value]) -> dict[int, Array]:
        """Lists of keys by their arguments."""
        found: dict[int, Array] = {}
        for op in find_all(func, "attn.key_lists"):
            s = self.sizes
            drawn = draw_lists(rng, op, s.batch, s.kv_heads, s.q_len, s.kv_len)
            found |= {arguments.index(x): numbers for x, numbers in zip(op.operands, drawn, strict=True) if x in arguments}
        return found

    def _sequences(self, rng: np.random.Generator, func: ir.Operation, arguments: list[ir.Value]) -> dict[int, Array]:
        """Where the sequences of packed tensors begin, and how long they are, by their arguments: `batch` of them at least."""
        found: dict[int, Array] = {}
        for op in find_all(func, "attn.sequences"):
            of_queries = op.attributes["of"].value == "query"  # pyright: ignore[reportAttributeAccessIssue]
            length = self.sizes.q_len if of_queries else self.sizes.kv_len
            ends = np.append(np.sort(rng.integers(0, length + 1, size=max(self.sizes.batch, 3) - 1)), length)
            begins = np.concatenate([[0], ends[:-1]])
            for value, numbers in zip(op.operands, (begins, ends - begins), strict=True):
                if value in arguments:
                    found.setdefault(arguments.index(value), numbers)
        return found

    def _pages(self, rng: np.random.Generator, func: ir.Operation, arguments: list[ir.Value], found: dict[int, Array]) -> _Shapes:
        """The shapes of tensors in pages, whose tables are drawn into `found`: each sequence has pages of its own, in any order."""
        shapes: _Shapes = {}
        for op in find_all(func, "attn.pages"):
            owner, table = op.parent, op.operands[0]
            packing = None if owner is None else packing_of(owner, "key")
            if owner is None or packing is None or table not in arguments:
                continue
            begins, lengths = (found[arguments.index(x)] for x in (packing.begins, packing.lengths))
            most = int(-(-(begins + lengths).max(initial=1) // _PAGE))
            pages = len(begins) * most + 1
            found[arguments.index(table)] = rng.permutation(pages)[: len(begins) * most].reshape(len(begins), most)
            of_keys = [*owner.operands[1:3], *(x for term in pieces(owner, "attn.term") for x in term.operands)]
            of_keys += [product.operands[1] for product in pieces(owner, "attn.product")]
            shapes |= {arguments.index(x): (pages, self.sizes.kv_heads, _PAGE) for x in of_keys if x in arguments}
        return shapes

    def _linear(self, rng: np.random.Generator, op: ir.Operation, arguments: list[ir.Value]) -> list[Array]:
        """Arguments of a linear attention: q_len positions, `heads` heads of o, `kv_heads` of what may have fewer; tame decays."""
        s, operands = self.sizes, named_operands(op, list(op.operands))
        varlen = "offsets" in operands
        counted = ("q", "k", "v", "decay")[ir.IntegerAttr(op.attributes["heads"]).value]
        full = {counted, "v", "decay", "factor"} if counted in ("v", "decay") else {counted, "factor"}
        found = {
            name: (1 if varlen else s.batch, s.heads if name in full else s.kv_heads, s.q_len)
            for name in ("q", "k", "v", "decay", "factor")
        }
        heads = s.kv_heads if counted != "v" else s.heads
        found |= {name: (1 if varlen else s.batch, heads, s.q_len) for name in _FURTHER}
        further = {name: value for name, value in _further(op) if value not in operands.values()}
        operands = {**operands, **further}
        shares = {read.operands[0] for mod in pieces(op, "attn.erase") for read in find_all(mod, "tensor.extract")}
        decays = {read.operands[0] for mod in pieces(op, "attn.decay") for read in find_all(mod, "tensor.extract")}
        drawn = []
        for argument in arguments:
            role = next((name for name, value in operands.items() if value == argument), None)
            if role == "offsets":
                inner = np.sort(rng.integers(0, s.q_len + 1, size=_SEQUENCES - 1))
                drawn.append(np.concatenate([[0], inner, [s.q_len]]))
            elif role == "initial_state":
                rows, _ = state_shape(op)
                drawn.append(self._draw(rng, argument.type, (_SEQUENCES if varlen else s.batch, s.heads, rows)))
            else:
                value = self._draw(rng, argument.type, found.get(role or ""))
                if pieces(op, "attn.erase") and role in (*_KEYS, "k"):  # longer keys would make states that grow
                    value = round_to(value / np.sqrt((value * value).sum(axis=3, keepdims=True)), element_type(argument.type))
                elif role is None and argument in shares:
                    value = np.abs(value) % 1.0
                elif role == "decay":
                    value = np.abs(value) if pieces(op, "attn.decay") else -np.abs(value)
                elif role is None and argument in decays and np.issubdtype(value.dtype, np.floating):
                    value = -np.abs(value)
                drawn.append(value)
        return drawn

    def _named(self, capture: ir.Value) -> tuple[int | None, ...]:
        """Sizes of the dimensions of a large captured tensor that only batches or only heads index; the others would cost most there."""
        if not isinstance(capture.type, ir.ShapedType) or capture.type.rank < 3 or self.capture_size is not None:
            return ()
        reads = [use.owner.operation for use in capture.uses]
        if any(read.name != "tensor.extract" for read in reads):
            return ()
        known, sizes = {0: self.sizes.batch, 1: self.sizes.heads}, list[int | None]()
        for axis in range(capture.type.rank):
            numbers = {_number(read.operands[1 + axis]) for read in reads}
            sizes.append(known.get(numbers.pop()) if len(numbers) == 1 and capture.type.is_dynamic_dim(axis) else None)
        return tuple(sizes)

    def _draw(self, rng: np.random.Generator, type_: ir.Type, leading: tuple[int | None, ...] | None) -> Array:
        scalar = element_type(type_)
        if not isinstance(type_, ir.ShapedType):
            integral = isinstance(scalar, (ir.IndexType, ir.IntegerType))
            return np.asarray(self.index) if integral else round_to(np.asarray(rng.uniform(0.5, 1.5)), scalar)
        known = [*(leading or ()), *[None] * type_.rank][: type_.rank]
        shape = [self._size(type_, axis) if size is None else size for axis, size in enumerate(known)]
        if math.prod(shape) > _MOST:
            raise MemoryError(f"a tensor of {shape}")
        if isinstance(scalar, ir.IntegerType) and scalar.width == 1:
            return rng.random(shape) < 0.5
        if isinstance(scalar, (ir.IntegerType, ir.IndexType)):
            return self._integers(rng, shape)
        return round_to(rng.standard_normal(shape), scalar)

    def _size(self, type_: ir.ShapedType, axis: int) -> int:
        if not type_.is_dynamic_dim(axis):
            return type_.shape[axis]
        if self.capture_size is not None:
            return self.capture_size
        s = self.sizes
        largest = max(s.batch, s.heads, s.q_len, s.kv_len)
        # Small tensors may be indexed by a difference of positions; of large ones every element costs.
        return max(64, 2 * largest) if type_.rank <= 2 else largest

    def _integers(self, rng: np.random.Generator, shape: list[int]) -> Array:
        """Uniform; of rank 1, sorted over the positions that exist, as document ids are."""
        drawn = rng.integers(*self.integers, size=shape)
        if len(shape) == 1:
            used = min(shape[0], max(self.sizes.q_len, self.sizes.kv_len))
            drawn[:used].sort()
        return drawn


def _number(value: ir.Value) -> int:
    """Which index of the pairs a piece of an attention is given: 0 for batches, 1 for heads; -1 for what is computed."""
    if not isinstance(value.owner, ir.Block) or not value.owner.owner.name.startswith("attn."):
        return -1
    indices = [argument for argument in value.owner.arguments if isinstance(argument.type, ir.IndexType)]
    return indices.index(value)


def _further(op: ir.Operation) -> list[tuple[str, ir.Value]]:
    """What pieces of the delta rule take, by what it is called."""
    names = {"attn.erase": ("erase_key", "removed_key"), "attn.write": ("written_key", "written_value")}
    return [each for name, roles in names.items() for piece in pieces(op, name) for each in zip(roles, piece.operands, strict=False)]
