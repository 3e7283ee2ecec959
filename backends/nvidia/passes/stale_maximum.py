"""Leaves out the search for the largest score of a block, as long as the old maximum of a row does."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.lazy_rescale import FREE
from attn_mlir.backends.nvidia.forming.dropped import before_dropout
from attn_mlir.backends.nvidia.forming.facts import wanted
from attn_mlir.backends.nvidia.forming.maps import narrowed
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.backends.nvidia.forming.replay import Replay, Scalar
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker, walk

_LIMITS = {"f16": 2.0**14, "bf16": 2.0**40, "f8E4M3FN": 448.0, "f8E5M2": 57344.0}
"""The smallest weight that is too large. 65504 is the largest number of f16. Those in bf16 have the range of f32: 2^24 of them below 2^40
make sums below 2^64, and sums of values times weights that are finite for values below 2^64. Those in 8 bits are the largest finite
numbers, to which what is above is rounded."""
_LATE = 128
"""Columns of an accumulator from which on a product lasts long enough to compute exponentials meanwhile. With 64 columns it costs 5 %: then
weights are rounded as they are made, behind the product that reads the former ones."""
_INVERSE = {0: 1, 1: 0, 2: 5, 5: 2, 3: 4, 4: 3}
"""Predicates of `arith.cmpi`: equal, other; less, not less; not more, more."""


@dataclass(frozen=True)
class StaleMaximum(Pass):
    """In a loop whose products overlap, weights are computed with the maximum that their rows had before, where any number may stand for it
    (`gpu.free`). No factor of the accumulator and of sums changes then, and no row is searched for its largest score.

    The weights are rounded when the product that reads the former ones is done; it is waited for behind the exponentials where its
    accumulator has 128 columns or more, else before them. Where one of a warp's reaches a limit (`warp.reaches`), the
    warp multiplies its scores once more (`warp.mma`) and takes the step with the new maximum. So the stage of the first product is given
    back only then. Where a condition tells blocks that a mask cuts, only those that it keeps whole do so.

    A kernel stays as it is, with the reason in `warp.refused`, where no loop has such a maximum, weights are no exponentials, something
    else is reduced, or, without the option `always`, `warp.schedule` has `lazy_rescale` = 0.
    """

    name = "warp-stale-maximum"
    always: bool = False

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, self._change)
        return True

    def _change(self, kernel: ir.Operation) -> None:
        if not self.always and not wanted(kernel, "lazy_rescale"):
            raise Refused("the schedule looks for the maximum of each block")
        change_parts(find_all(kernel, "scf.for"), lambda loop: _Step(loop).change(), "there is no loop")


class _Step:
    """What a loop does with the scores of a block. Raises Refused where that is something else than a step of softmax."""

    def __init__(self, loop: ir.Operation) -> None:
        block = loop.regions[0].blocks[0]
        ops = [view.operation for view in block.operations]
        waits = [op for op in ops if op.name == "warp.mma_wait"]
        if [number(op, "pending") for op in waits] != [1, 0]:
            raise Refused("no loop has two products in flight together")
        self.first, self.second = waits
        products = [op for wait in waits if (op := maker(wait.operands[0], "warp.mma_async")) is not None]
        self.carried, self.last = list(block.arguments)[1:], ops[-1]
        if len(products) != 2 or products[1].operands[1] not in self.carried:
            raise Refused("the second product multiplies nothing that the loop carries")
        self.scores, self.sums = products
        if not _is_known(ops, self.first):
            ops = _numbers_first(ops, self.first)
        self.frees = _arrivals(ops, self.first)
        self.unit = [self.second, *_arrivals(ops, self.second)]
        # A step that is taken again reads windows of captured tensors again: they are held until then.
        self.frees += [op for op in ops[ops.index(self.first) + 1 : -1] if op.name == "warp.arrive" and op not in (*self.frees, *self.unit)]
        self.weights, self.parts = self.carried.index(self.sums.operands[1]), list[ir.Value]()
        self.yielded = list(self.last.operands)
        self.dropped = maker(self.yielded[self.weights], "warp.drop")
        self.yielded[self.weights] = before_dropout(self.yielded[self.weights])
        others = [*self.frees, *self.unit, *([] if self.dropped is None else [self.dropped])]
        self.rest = [op for op in ops[ops.index(self.first) + 1 : -1] if op not in others]
        inner = [each for op in self.rest for each in (op, *walk(op))]
        others = {op.name for op in inner if not op.name.startswith(("arith.", "math.", "tensor.", "memref.load"))}
        others -= {"warp.map", "warp.reduce", "warp.yield", "scf.if", "scf.yield"}
        if others:
            raise Refused(f"a step also does {', '.join(sorted(others))}")
        self.inside = set(inner)
        self.changed = [n for n, v in enumerate(self.yielded) if not isinstance(v.owner, ir.Block) and v.owner.operation in self.inside]
        if self.weights not in self.changed:
            raise Refused("a step makes no weights")
        self._choose()

    def change(self) -> None:
        """Takes the step with the old maximum."""
        limit = self._check()
        order = sorted(self.changed, key=lambda n: str(self.yielded[n].type))
        with self.second.location, ir.InsertionPoint(self.second if self.wide else self.last):
            tried = self._tried(order)
            parts = tried.pop() if self.parts else None
        with self.second.location, ir.InsertionPoint(self.last):
            if self.wide:
                at = order.index(self.weights)
                tried[at] = narrowed(tried[at], ir.RankedTensorType(self.yielded[self.weights].type).element_type)
            results = self._redone(order, tried, limit, parts)
        for op in self.frees:
            op.move_before(self.last)
        for n, value in zip(order, results, strict=True):
            if self.dropped is not None and n == self.weights:
                self.dropped.operands[0] = value
                self.dropped.move_before(self.last)
            else:
                self.last.operands[n] = value
        for op in reversed(self.rest):
            if not any(list(result.uses) for result in op.results):
                op.erase()

    # ---- what there is

    def _choose(self) -> None:
        """Which branch of each condition a block takes that no mask cuts: the one of fewer numbers."""
        conditions = list(dict.fromkeys(op.operands[0] for op in self.rest if op.name == "scf.if"))
        before = [c for c in conditions if isinstance(c.owner, ir.Block) or c.owner.operation not in self.inside]
        if conditions and not before:
            raise Refused("no condition of a step is known before its scores")
        same = {condition: _alike(before[0], condition) for condition in conditions}
        self.condition = before[0] if before else None
        sides = [{c: is_same == side for c, is_same in same.items()} for side in (True, False)]
        self.whole = min(sides, key=lambda taken: self._numbers(taken)) if conditions else {}
        self.cut = {condition: not side for condition, side in self.whole.items()}

    def _numbers(self, taken: dict[ir.Value, bool]) -> int:
        """How many ops stand in the maps of a way through the step."""
        blocks = [op.regions[0 if taken[op.operands[0]] else 1] for op in self.rest if op.name == "scf.if"]
        return sum(sum(1 for _ in walk(view.operation)) for region in blocks for view in region.blocks[0].operations)

    def _check(self) -> ir.FloatAttr:
        """The limit of weights. Raises Refused where the old maximum cannot stand for the new one."""
        plain = Replay(self.inside, self.whole)
        self.kept = {
            plain.branch(self.yielded[n]): self.carried[n] for n in self.changed if self._is_free(plain.branch(self.yielded[n]), n)
        }
        if not self.kept:
            raise Refused("no loop carries a maximum for which any number may stand")
        stale = Replay(self.inside, self.whole, kept=self.kept)
        if any(stale.settled(self.yielded[n]) != Scalar("const", 1.0) for n in self._factors()):
            raise Refused("the accumulator is multiplied by more than what follows from maxima")
        sides = [self.whole, self.cut] if self.whole else [{}]
        weights = [Replay(self.inside, taken).branch(self.yielded[self.weights]) for taken in sides]
        if any(maker(value, "warp.map") is None or _name(stale.scalar_of(value)) != "arith.truncf" for value in weights):
            raise Refused("no map rounds the weights")
        exact = stale.scalar_of(weights[0]).operands[0]
        if _name(exact) not in ("math.exp", "math.exp2"):
            raise Refused("weights are no exponentials")
        reduced = self._reduced(stale)
        if any(kind != "sum" or stale.scalar_of(value) != exact for value, kind in reduced):
            raise Refused("a step reduces something else than its weights")
        sums = ir.RankedTensorType(self.second.results[0].type)
        self.wide = frozenset(weights if sums.shape[1] >= _LATE and self.dropped is None else ())
        type_ = ir.RankedTensorType(self.yielded[self.weights].type).element_type
        if str(type_) not in _LIMITS:
            raise Refused(f"weights of {type_} have no limit")
        if is_eight_bit(type_):
            self.parts = [value for taken in sides for value, kind in self._reduced(Replay(self.inside, taken)) if kind == "sum"]
            if not reduced or len(self.parts) != len(sides):
                raise Refused("a step does not add its weights once")
        return ir.FloatAttr.get(type_, _LIMITS[str(type_)], loc=self.second.location)

    def _reduced(self, replay: Replay) -> list[tuple[ir.Value, str]]:
        """What a way through the step reduces to parts of rows, and how."""
        needed = dict.fromkeys(found for n in self.changed for found in replay.needed(self.yielded[n]))
        kinds = [ir.StringAttr(v.owner.operation.attributes["reductions"][ir.OpResult(v).result_number]).value for v in needed]
        return [(value, kind) for value, kind in zip(needed, kinds, strict=True) if kind]

    def _is_free(self, value: ir.Value, place: int) -> bool:
        """Whether row values are a maximum of the carried ones and others, for which any number may stand."""
        made = maker(value, "warp.map")
        if made is None:
            return False
        free = [op for op in walk(made) if op.name == "arith.maximumf" and FREE in op.attributes]
        reads = {read.operands[0] for op in free for v in op.operands if (read := maker(v, "tensor.extract")) is not None}
        return self.carried[place] in reads and value.type == self.carried[place].type

    def _factors(self) -> Iterator[int]:
        """The carried row values by which the accumulator is multiplied. Raises Refused where something else becomes of it."""
        start = self.sums.operands[0]
        map_ = maker(start, "warp.map")
        if map_ is None:
            if start not in self.carried:
                raise Refused("the accumulator is not carried")
            return
        scalar = Replay(set(), {}).scalar_of(start)
        if _name(scalar) != "arith.mulf" or any(operand.kind != "read" or operand.key not in self.carried for operand in scalar.operands):
            raise Refused("the accumulator is not multiplied by carried row values")
        yield from (self.carried.index(v) for v in scalar.sources() if len(ir.RankedTensorType(v.type).shape) == 1)

    # ---- what becomes of it

    def _tried(self, order: list[int]) -> list[ir.Value]:
        """What the step gives with the old maximum, of blocks that a mask cuts with a new one; weights in f32.

        Last, of weights of 8 bits, the parts of their sums.
        """
        stale = Replay(self.inside, self.whole, kept=self.kept, wide=self.wide)
        sums = dict(zip((True, False), self.parts, strict=False))
        if self.condition is None:
            return [*(stale.value(self.yielded[n]) for n in order), *map(stale.value, self.parts)]
        exact = Replay(self.inside, self.cut, wide=self.wide)
        types = [*(self._wide(n) for n in order), *(value.type for value in self.parts[:1])]
        first, second = (stale, exact) if self.whole[self.condition] else (exact, stale)

        def given(replay: Replay) -> Callable[[], list[ir.Value]]:
            own = [sums[replay is stale]] if sums else []
            return lambda: [replay.value(value) for value in (*(self.yielded[n] for n in order), *own)]

        return _if(self.condition, types, given(first), given(second))

    def _wide(self, n: int) -> ir.Type:
        type_ = ir.RankedTensorType(self.yielded[n].type)
        return ir.RankedTensorType.get(type_.shape, ir.F32Type.get(), type_.encoding) if self.wide and n == self.weights else type_

    def _redone(self, order: list[int], tried: list[ir.Value], limit: ir.FloatAttr, parts: ir.Value | None) -> list[ir.Value]:
        """The results of the step, after what a warp does again whose weights got too large.

        Weights are no larger than their sums, which are there: to compare those of 8 bits takes as long as to look for their maximum.
        """
        types = [self.yielded[n].type for n in order]

        def again() -> list[ir.Value]:
            scores = self.first.results[0]
            zero = arith.ConstantOp(ir.F32Type.get(), 0.0).result
            empty = build.map_(list(ir.RankedTensorType(scores.type).shape), [scores.type], [""], lambda i, j: [zero])[0]
            turned = {name: ir.BoolAttr(self.scores.attributes[name]).value for name in ("transpose_a", "transpose_b")}
            made = build.op("mma", [empty, *list(self.scores.operands)[1:3]], [scores.type], **turned).result
            replay = Replay(self.inside, self.whole, known={scores: made})
            return [replay.value(self.yielded[n]) for n in order]

        def each() -> list[ir.Value]:
            made = build.each_warp(types)
            with ir.InsertionPoint(made.regions[0].blocks[0]):
                asked = {"results": [_bit()], "operands": [tried[order.index(self.weights)]], "attributes": {"limit": limit}}
                some = ir.Operation.create("warp.reaches", **asked).result if parts is None else _reaching(parts, limit.value)
                build.yield_(_if(some, types, again, lambda: tried))
            return list(made.results)

        if self.condition is None:
            return each()
        first, second = (each, lambda: tried) if self.whole[self.condition] else (lambda: tried, each)
        return _if(self.condition, types, first, second)


def _bit() -> ir.Type:
    return ir.IntegerType.get_signless(1)


def _reaching(parts: ir.Value, limit: float) -> ir.Value:
    """Whether parts of sums are not below a limit, for some thread of a warp."""
    type_ = ir.RankedTensorType(parts.type)
    most = arith.ConstantOp(type_.element_type, limit).result

    def reach(*places: ir.Value) -> list[ir.Value]:
        part = ir.Operation.create("tensor.extract", results=[type_.element_type], operands=[parts, *places]).result
        return [arith.CmpFOp(arith.CmpFPredicate.UGE, part, most).result]

    marked = build.map_(type_.shape, [ir.RankedTensorType.get(type_.shape, _bit(), type_.encoding)], [""], reach)
    return build.op("vote", marked, [_bit()]).result


def _is_known(ops: list[ir.Operation], wait: ir.Operation) -> bool:
    """Whether a condition behind a wait is made before it, or there is none."""
    behind = ops[ops.index(wait) :]
    conditions = [op.operands[0] for op in behind if op.name == "scf.if"]
    return not conditions or any(isinstance(c.owner, ir.Block) or c.owner.operation not in behind for c in conditions)


def _numbers_first(ops: list[ir.Operation], wait: ir.Operation) -> list[ir.Operation]:
    """The ops of a loop, once those behind a wait that compute numbers, as which loop a block is of, stand before it where they can."""
    at = ops.index(wait)
    before, behind = ops[:at], ops[at:]
    known = {result for op in before for result in op.results}
    block = wait.block
    for op in behind:
        own = [value for value in op.operands if not isinstance(value.owner, ir.Block) and value.owner.operation.block == block]
        if op.name.startswith("arith.") and all(value in known for value in own):
            op.move_before(wait)
            before.append(op)
            known |= set(op.results)
    return [*before, *(op for op in behind if op not in before)]


def _arrivals(ops: list[ir.Operation], wait: ir.Operation) -> list[ir.Operation]:
    """The arrivals directly behind a wait."""
    behind = ops[ops.index(wait) + 1 :]
    return behind[: next((n for n, op in enumerate(behind) if op.name != "warp.arrive"), len(behind))]


def _name(scalar: Scalar) -> str:
    return scalar.key[0] if scalar.kind == "op" else ""


def _alike(a: ir.Value, b: ir.Value) -> bool:
    """Whether one condition is the other one, rather than its opposite. Raises Refused where it is neither."""
    if a == b:
        return True
    both = [op for value in (a, b) if (op := maker(value, "arith.cmpi")) is not None]
    if len(both) == 2 and list(both[0].operands) == list(both[1].operands):
        kinds = [ir.IntegerAttr(op.attributes["predicate"]).value for op in both]
        if _INVERSE.get(kinds[0]) == kinds[1]:
            return False
    raise Refused("conditions in a step have nothing to do with each other")


def _if(condition: ir.Value, types: list[ir.Type], *branches: Callable[[], list[ir.Value]]) -> list[ir.Value]:
    """An `scf.if` of two branches that give values."""
    made = ir.Operation.create("scf.if", results=types, operands=[condition], regions=2)
    for region, branch in zip(made.regions, branches, strict=True):
        with ir.InsertionPoint(region.blocks.append()):
            ir.Operation.create("scf.yield", operands=branch())
    return list(made.results)
