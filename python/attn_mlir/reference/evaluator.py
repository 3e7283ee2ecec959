"""Executes a module of any stage on numpy arrays, in float64, by the definition of its ops."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import pieces
from attn_mlir.reference.attention import attention
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.interpreter import SHARED_RULES, EvaluationFrame, FrameRule
from attn_mlir.reference.linear import chunk, decay_gradient, decay_gradient_sum, head_sum, linear_attention
from attn_mlir.reference.online import online
from attn_mlir.reference.packed import PackedWeights, packed_attention, packed_elements, packed_pairs, packed_rows
from attn_mlir.reference.pairs import Weights, collect, elements, key_sum, pairs, query_sum, row_dot, scatter
from attn_mlir.reference.presence import presence
from attn_mlir.reference.problem import Blocking, OpInputs, pairs_problem, problem
from attn_mlir.reference.scalar import Array, element_type, wrap
from attn_mlir.reference.segments import decay_sum, state_scan, transition_scan
from attn_mlir.reference.tiles import inputs_of, lists_of, run_kernel


def evaluate(
    module: ir.Module | ir.Operation | ir.OpView,
    inputs: Sequence[Any],
    function: str = "attention",
    block: int | Sequence[int] | None = None,
    *,
    q_block: int = 16,
    split: int = 1,
    rounding: bool = False,
    detached: "Detached | None" = None,
    shapes: Sequence[tuple[int, ...]] | None = None,
) -> list[Array]:
    """The results of `function` for `inputs`: arrays (float arrays for f16 and bf16) and Python scalars.

    `block` is the number of keys that `attn.online` takes at once, or several numbers to be used in turn; `q_block`
    is the number of rows for which bounds are asked; `split` > 1 runs `attn.online` in that many parts and merges
    them. With `rounding`, `arith.truncf` rounds. A tiled function uses the sizes it was tiled with. A function that calls
    others of the module, as derivatives do after `attn-outline`, is run with them. `detached` records or sets the values
    of `attn.detach`. `shapes` are those of a kernel's outputs; without them, they have q's rows.
    """
    func = find_function(module, function)
    with np.errstate(all="ignore"):
        return _Runner(module, Blocking(q_block, _sizes(block)), split, rounding, detached, shapes).run(func, inputs)


@dataclasses.dataclass
class Detached:
    """The values of `attn.detach` and the arguments of `attn.slope`, as they are computed: constants to a derivative."""

    values: list[Array] = dataclasses.field(default_factory=list)
    position: int | None = None
    """The next value to be used; None while they are recorded."""

    def replay(self) -> "Detached":
        """The same values, to be used by another run."""
        return Detached(self.values, 0)

    def rule(self, frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> list[Array]:
        """What an `attn.detach` gives."""
        if self.position is None:
            self.values.append(args[0])
            return args
        self.position += 1
        return [self.values[self.position - 1]]

    def slope(self, frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> list[Array]:
        """What an `attn.slope` gives: the line of that slope through 0 at the recorded point."""
        if self.position is None:
            self.values += args
            return [np.zeros_like(args[0])]
        self.position += 2
        at, factor = self.values[self.position - 2 : self.position]
        return [factor * (args[0] - at)]


@dataclasses.dataclass(frozen=True)
class _Runner:
    """Runs functions of a module; `calling` are those that wait for a result."""

    module: ir.Module | ir.Operation | ir.OpView
    blocks: Blocking
    split: int
    rounding: bool
    detached: Detached | None = None
    shapes: Sequence[tuple[int, ...]] | None = None
    calling: tuple[str, ...] = ()

    def run(self, func: ir.Operation, inputs: Sequence[Any]) -> list[Array]:
        """The results of `func`."""
        if "tile.kernel" in func.attributes:
            return run_kernel(func, _kernel_inputs(func, inputs, self.shapes), self.rounding)
        block = func.regions[0].blocks[0]
        arguments = _arguments(func, [argument.type for argument in block.arguments], inputs)
        return EvaluationFrame({}, self._rules(), rounding=self.rounding).run(block, arguments)

    def _call(self, frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
        name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if name in self.calling:
            raise EvaluationError(f"@{name} calls itself", op.location)
        return dataclasses.replace(self, calling=(*self.calling, name), shapes=None).run(find_function(self.module, name), args)

    def _rules(self) -> dict[str, FrameRule]:
        blocks, split = self.blocks, self.split
        return {
            **SHARED_RULES,
            **_TENSOR_RULES,
            "attn.attention": lambda frame, op, args: _attention(op, frame, args, blocks, attention),
            "attn.online": lambda frame, op, args: _attention(op, frame, args, blocks, lambda p: online(p, split)),
            "attn.pairs": lambda frame, op, args: [_pairs(op, frame, blocks)],
            "func.call": self._call,
            **({"attn.detach": self.detached.rule, "attn.slope": self.detached.slope} if self.detached is not None else {}),
        }


def _attention(
    op: ir.Operation, frame: EvaluationFrame, args: list[Array], blocks: Blocking, run: Callable[[OpInputs], list[Array]]
) -> list[Array]:
    if pieces(op, "attn.sequences"):
        return packed_attention(op, frame, args, blocks, run)
    return run(problem(op, frame, args, blocks))


def _pairs(op: ir.Operation, frame: EvaluationFrame, blocks: Blocking) -> Weights | PackedWeights:
    return packed_pairs(op, frame, blocks, pairs) if pieces(op, "attn.sequences") else pairs(pairs_problem(op, frame, blocks))


def _elements(op: ir.Operation, frame: EvaluationFrame, like: Array) -> Weights | PackedWeights:
    if pieces(op, "attn.sequences"):
        return packed_elements(op, frame, like, lambda part, number: elements(op, frame, part, number))
    return elements(op, frame, like)


def _sum(op: ir.Operation, w: Weights | PackedWeights, tensors: list[Array], frame: EvaluationFrame) -> Array:
    make = query_sum if op.name == "attn.query_sum" else key_sum
    if isinstance(w, Weights):
        return make(op, w, tensors)
    product = pieces(op.operands[0].owner.operation, "attn.product")[0]
    side = int(make is key_sum)
    like = (*frame.values[product.operands[side]].shape[:3], tensors[0].shape[3])
    return w.sums(like, side, lambda part, rows: make(op, part, rows), tensors)


def _scatter(op: ir.Operation, frame: EvaluationFrame, w: Weights | PackedWeights, like: Array) -> Array:
    if isinstance(w, Weights) and "diagonals" in op.attributes:
        batch, heads, queries, keys = w.shape
        return scatter(op, frame, w, np.zeros((batch, heads, queries + keys)))
    if isinstance(w, Weights):
        return scatter(op, frame, w, like)
    return np.zeros(like.shape) + w.added(lambda part: scatter(op, frame, part, like))


def _collect(op: ir.Operation, w: Weights | PackedWeights, frame: EvaluationFrame) -> Array:
    if isinstance(w, Weights):
        return collect(op, w)
    like = frame.values[op.operands[0].owner.operation.operands[0]]
    return w.sums(like.shape, 0, lambda part, _: collect(op, part), [])


def rows_with_keys(module: ir.Module | ir.Operation | ir.OpView, inputs: Sequence[Any], function: str = "attention") -> Array:
    """Which rows [B, Hq, Sq] of the attention in `function` have a present key."""
    func = find_function(module, function)
    found: list[Array] = []

    def look(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
        def filled(p: OpInputs) -> list[Array]:
            return [np.asarray(presence(p).present.any(axis=3))]

        if pieces(op, "attn.sequences"):
            q, k, v = args
            rows = packed_rows(op, frame, q.shape[:3], [q, k, v], filled)
        else:
            (rows,) = filled(problem(op, frame, args, Blocking()))
        found.append(rows)
        return [np.zeros(0)] * len(op.results)

    block = func.regions[0].blocks[0]
    with np.errstate(all="ignore"):
        rules = {**SHARED_RULES, "attn.attention": look, "attn.online": look, "attn.output": lambda *_: [np.zeros(0)]}
        EvaluationFrame({}, rules).run(block, _arguments(func, [argument.type for argument in block.arguments], inputs))
    if len(found) != 1:
        raise EvaluationError(f"@{function} holds {len(found)} attentions, not one", func.location)
    return found[0]


def find_function(module: ir.Module | ir.Operation | ir.OpView, name: str) -> ir.Operation:
    """The `func.func` called `name` in `module`, or `module` itself if it is one."""
    root = module.operation
    functions = _functions(root)
    for func in functions:
        if func.attributes["sym_name"].value == name and len(func.regions[0].blocks) == 1:
            return func
    names = ", ".join(f"@{func.attributes['sym_name'].value}" for func in functions) or "none"
    raise EvaluationError(f"no function @{name} with a body; found {names}", root.location)


def functions_of(module: ir.Module | ir.Operation | ir.OpView) -> list[str]:
    """The names of all functions with a body."""
    functions = _functions(module.operation)
    return [func.attributes["sym_name"].value for func in functions if len(func.regions[0].blocks) == 1]


def _functions(root: ir.Operation) -> list[ir.Operation]:
    if root.name == "func.func":
        return [root]
    blocks = [block for region in root.regions for block in region.blocks]
    return [view.operation for block in blocks for view in block.operations if view.operation.name == "func.func"]


def _sizes(block: int | Sequence[int] | None) -> tuple[int, ...]:
    sizes = (37,) if block is None else (block,) if isinstance(block, int) else tuple(block)
    if not sizes or min(sizes) < 1:
        raise EvaluationError(f"block sizes are positive numbers, got {block}")
    return sizes


def _arguments(func: ir.Operation, types: Sequence[ir.Type], inputs: Sequence[Any]) -> list[Array]:
    if len(types) != len(inputs):
        raise EvaluationError(f"@{func.attributes['sym_name'].value} takes {len(types)} arguments, got {len(inputs)}", func.location)
    return [_argument(func, i, type_, value) for i, (type_, value) in enumerate(zip(types, inputs, strict=True))]


def _argument(func: ir.Operation, position: int, type_: ir.Type, value: Any) -> Array:
    array = np.asarray(value)
    shape = list(type_.shape) if isinstance(type_, ir.ShapedType) else []
    dynamic = [isinstance(type_, ir.ShapedType) and type_.is_dynamic_dim(i) for i in range(len(shape))]
    fits = array.ndim == len(shape) and all(d or n == size for d, n, size in zip(dynamic, shape, array.shape, strict=True))
    if not fits:
        raise EvaluationError(f"argument {position} has type {type_}, got an array of shape {list(array.shape)}", func.location)
    if isinstance(element_type(type_), (ir.IntegerType, ir.IndexType)):
        return wrap(array, type_)
    return array.astype(np.float64)


def _kernel_inputs(func: ir.Operation, inputs: Sequence[Any], shapes: Sequence[tuple[int, ...]] | None) -> list[Array]:
    """The arguments of a kernel: the inputs, and an output full of NaN for every argument after them."""
    types = [argument.type for argument in func.regions[0].blocks[0].arguments]
    types = types[: len(types) - lists_of(func)]
    count = inputs_of(func)
    given = _arguments(func, types[:count], inputs)
    if shapes is None:
        memory = all(isinstance(type_, ir.MemRefType) for type_ in types[count:])
        if not given or given[0].ndim < 3 or not memory:
            raise EvaluationError("a kernel has a tensor [B, H, S, ...] as its first argument, and tensors as outputs", func.location)
        shapes = [(*given[0].shape[:3], *ir.MemRefType(type_).shape[3:]) for type_ in types[count:]]
    return [*given, *(np.full(shape, np.nan) for shape in shapes)]


_TENSOR_RULES: dict[str, FrameRule] = {
    "attn.elements": lambda frame, op, args: [_elements(op, frame, args[0])],
    "attn.query_sum": lambda frame, op, args: [_sum(op, args[0], args[1:], frame)],
    "attn.key_sum": lambda frame, op, args: [_sum(op, args[0], args[1:], frame)],
    "attn.scatter": lambda frame, op, args: [_scatter(op, frame, *args)],
    "attn.collect": lambda frame, op, args: [_collect(op, args[0], frame)],
    "attn.row_dot": lambda frame, op, args: [row_dot(op, *args)],
    "attn.linear_attention": lambda frame, op, args: linear_attention(op, frame, args),
    "attn.chunk": lambda frame, op, args: chunk(op, frame, args),
    "attn.head_sum": lambda frame, op, args: [head_sum(op, *args)],
    "attn.decay_gradient": lambda frame, op, args: [decay_gradient(op, args)],
    "attn.decay_gradient_sum": lambda frame, op, args: [decay_gradient_sum(op, args)],
    "attn.decay_sum": lambda frame, op, args: [decay_sum(op, frame, args)],
    "attn.state_scan": lambda frame, op, args: state_scan(op, args),
    "attn.transition_scan": lambda frame, op, args: transition_scan(op, args),
}
