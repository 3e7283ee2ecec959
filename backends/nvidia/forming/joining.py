"""One loop of several that follow each other: what their bodies share stands once, maps that differ stand in a condition."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import clone_op, walk

_LOOSE = ("arith.", "math.")
Known = dict[ir.Value, ir.Value]


def chains_of(block: ir.Block) -> list[list[ir.Operation]]:
    """Loops of a block each of which goes on with what the one before it hands on, two or more; between them stand numbers only."""
    chains: list[list[ir.Operation]] = []
    for op in (view.operation for view in block.operations):
        if op.name == "scf.for" and list(op.results):
            if chains and chains[-1] and _follows(op, chains[-1][-1]):
                chains[-1].append(op)
            else:
                chains.append([op])
        elif not op.name.startswith((*_LOOSE, "memref.dim", "attn.range")):
            chains.append([])
    return [chain for chain in chains if len(chain) > 1]


def _follows(loop: ir.Operation, before: ir.Operation) -> bool:
    """Whether a loop begins with all that another one hands on, which nothing else uses, and has its step."""
    same = list(loop.operands)[3:] == list(before.results) and loop.operands[2] == before.operands[2]
    return same and all(use.owner.operation == loop for result in before.results for use in result.uses)


@dataclass
class JoinedLoop:
    """The loop that is made of a chain. `known` holds, for each loop of the chain, what stands for its values.

    `until` are conditions for all loops but the last: whether the iteration at hand is one of theirs, or of one before them.
    """

    chain: list[ir.Operation]
    known: list[Known] = field(default_factory=list)
    until: list[ir.Value] = field(default_factory=list)
    made: dict[Any, ir.Operation] = field(default_factory=dict)

    def join(self) -> None:
        """Puts the joined loop in the place of the chain's last one. Raises Refused, with nothing changed."""
        last = self.chain[-1]
        with last.location, ir.InsertionPoint(last):
            zero, one = build.index(0), build.index(1)
            ends = self._ends(zero)
            body_of = [loop.regions[0].blocks[0] for loop in self.chain]
            names = [argument.location for argument in body_of[0].arguments]
            loop = build.loop(zero, ends[-1], one, list(self.chain[0].operands)[3:], names)
        block = loop.regions[0].blocks[0]
        try:
            with last.location, ir.InsertionPoint(block):
                self._begin(block, body_of, ends, zero)
                yielded = self._bodies([[view.operation for view in body.operations] for body in body_of])
                ir.Operation.create("scf.yield", operands=yielded)
        except Refused:
            loop.erase()
            raise
        for old, new in zip(last.results, loop.results, strict=True):
            old.replace_all_uses_with(new)
        for old in reversed(self.chain):
            old.erase()

    def _ends(self, zero: ir.Value) -> list[ir.Value]:
        """How many iterations the loops of the chain have, each with those before it."""
        ends: list[ir.Value] = []
        for loop in self.chain:
            begin, end, step = list(loop.operands)[:3]
            length = arith.MaxSIOp(arith.SubIOp(end, begin).result, zero).result
            count = arith.CeilDivSIOp(length, step).result
            ends.append(arith.AddIOp(ends[-1], count).result if ends else count)
        return ends

    def _begin(self, block: ir.Block, bodies: list[ir.Block], ends: list[ir.Value], zero: ir.Value) -> None:
        """Which loop an iteration is of, and its index there."""
        number, *carried = block.arguments
        self.until = [arith.CmpIOp(arith.CmpIPredicate.slt, number, end).result for end in ends[:-1]]
        indices = []
        for loop, first in zip(self.chain, [zero, *ends], strict=False):
            own = arith.SubIOp(number, first).result if first is not zero else number
            indices.append(arith.AddIOp(loop.operands[0], arith.MulIOp(own, loop.operands[2]).result).result)
        index = self._chosen(indices)
        self.known = [dict(zip(body.arguments, [index, *carried], strict=True)) for body in bodies]

    def _chosen(self, values: list[ir.Value]) -> ir.Value:
        """Of a value for each loop, that of the loop at hand."""
        chosen = values[-1]
        for condition, value in reversed(list(zip(self.until, values, strict=False))):
            chosen = value if value == chosen else arith.SelectOp(condition, value, chosen).result
        return chosen

    def _bodies(self, bodies: list[list[ir.Operation]]) -> list[ir.Value]:
        """Forms the ops of all bodies, in step; what they hand on."""
        rest = [self._loose(n, ops) for n, ops in enumerate(bodies)]
        while not all(ops[0].name == "scf.yield" for ops in rest):
            self._op([ops.pop(0) for ops in rest])
            rest = [self._loose(n, ops) for n, ops in enumerate(rest)]
        handed = [[self.known[n].get(v, v) for v in ops[0].operands] for n, ops in enumerate(rest)]
        if any(values != handed[0] for values in handed):
            raise Refused("loops that follow each other hand different values on")
        return handed[0]

    def _loose(self, number: int, ops: list[ir.Operation]) -> list[ir.Operation]:
        """Forms the numbers that a body begins with, equal ones of several bodies once; the ops behind them."""
        known = self.known[number]
        while ops[0].name.startswith(_LOOSE):
            op, *ops = ops
            operands = tuple(known.get(v, v) for v in op.operands)
            key = (op.name, operands, _attributes(op), tuple(str(r.type) for r in op.results))
            if key not in self.made:
                self.made[key] = clone_op(op, known)
            known.update(zip(op.results, self.made[key].results, strict=True))
        return ops

    def _op(self, ops: list[ir.Operation]) -> None:
        """Forms an op of each body: one where they are the same but for numbers, which are chosen; maps otherwise in a condition."""
        groups: list[list[int]] = []
        for n, op in enumerate(ops):
            group = next((g for g in groups if self._alike(ops[g[0]], op, g[0], n) is not None), None)
            if group is None:
                groups.append([n])
            else:
                group.append(n)
        if len(groups) == 1:
            made = list(clone_op(ops[0], self._numbers(ops, groups[0])).results)
            for n, op in enumerate(ops):
                self.known[n].update(zip(op.results, made, strict=True))
            return
        if any(op.name != "warp.map" for op in ops) or len(groups) > 2:
            names = ", ".join(sorted({op.name for op in ops}))
            raise Refused(f"bodies of loops that follow each other differ in more than maps of two forms: {names}")
        self._branch(ops, *sorted(groups, key=lambda group: -len(ops[group[0]].results)))

    def _alike(self, a: ir.Operation, b: ir.Operation, of_a: int, of_b: int) -> dict[ir.Value, ir.Value] | None:
        """Of two ops that do the same but for numbers, which value of `b` stands where one of `a` does; None for others."""
        pairs: dict[ir.Value, ir.Value] = {}
        inner: Known = {}
        if not _compare(a, b, inner, pairs):
            return None
        for one, other in pairs.items():
            same = self.known[of_a].get(one, one) == self.known[of_b].get(other, other)
            if not same and not isinstance(one.type, (ir.IndexType, ir.IntegerType)):
                return None
        return pairs

    def _branch(self, ops: list[ir.Operation], more: list[int], less: list[int]) -> None:
        """Maps of two forms in a condition. Where `more` makes a tile that `less` has already, both go on with the chosen one."""
        wide, narrow = ops[more[0]], ops[less[0]]
        counterparts = _counterparts(wide, narrow)
        bit = ir.IntegerType.get_signless(1)
        flags = [arith.ConstantOp(bit, int(n in more)).result for n in range(len(ops))]
        before = [self._numbers(ops, group) for group in (more, less)]
        types = [result.type for result in wide.results]
        branch = ir.Operation.create("scf.if", results=types, operands=[self._member(more, flags)], regions=2)
        with ir.InsertionPoint(branch.regions[0].blocks.append()):
            ir.Operation.create("scf.yield", operands=list(clone_op(wide, before[0]).results))
        with ir.InsertionPoint(branch.regions[1].blocks.append()):
            clone_op(narrow, before[1])
            ir.Operation.create("scf.yield", operands=[before[1].get(value, value) for value in counterparts])
        for n in more:
            self.known[n].update(zip(ops[n].results, branch.results, strict=True))
        for n in less:
            own = dict(zip([*narrow.results, *_read(narrow)], [*ops[n].results, *_read(ops[n])], strict=True))
            self.known[n].update({own[value]: result for value, result in zip(counterparts, branch.results, strict=True)})

    def _member(self, group: list[int], flags: list[ir.Value]) -> ir.Value:
        """Whether an iteration is one of a group of loops."""
        if len(flags) == 2 and group == [0]:
            return self.until[0]
        return self._chosen(flags)

    def _numbers(self, ops: list[ir.Operation], group: list[int]) -> Known:
        """What stands for the values of the first loop of a group, with numbers that differ between its loops chosen."""
        first = group[0]
        known = dict(self.known[first])
        for n in group[1:]:
            for value, other in (self._alike(ops[first], ops[n], first, n) or {}).items():
                mine, theirs = known.get(value, value), self.known[n].get(other, other)
                if mine != theirs:
                    known[value] = self._chosen([theirs if m == n else mine for m in range(len(ops))])
        return known


def _attributes(op: ir.Operation) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(op.attributes[name])) for name in op.attributes)


def _compare(a: ir.Operation, b: ir.Operation, inner: Known, pairs: dict[ir.Value, ir.Value]) -> bool:
    """Whether two ops are of one form. `inner` pairs values made inside of them, `pairs` the others, one with one."""
    if a.name != b.name or [r.type for r in a.results] != [r.type for r in b.results] or _attributes(a) != _attributes(b):
        return False
    if len(list(a.operands)) != len(list(b.operands)) or len(a.regions) != len(b.regions):
        return False
    for one, other in zip(a.operands, b.operands, strict=True):
        if one in inner:
            if inner[one] != other:
                return False
        elif pairs.setdefault(one, other) != other or one.type != other.type:
            return False
    for region, another in zip(a.regions, b.regions, strict=True):
        blocks = [list(region.blocks), list(another.blocks)]
        if len(blocks[0]) != len(blocks[1]):
            return False
        for left, right in zip(*blocks, strict=True):
            lists = [[view.operation for view in each.operations] for each in (left, right)]
            if len(lists[0]) != len(lists[1]) or len(left.arguments) != len(right.arguments):
                return False
            inner.update(zip(left.arguments, right.arguments, strict=True))
            if not all(_compare(x, y, inner, pairs) for x, y in zip(*lists, strict=True)):
                return False
    inner.update(zip(a.results, b.results, strict=True))
    return True


def _read(map_: ir.Operation) -> list[ir.Value]:
    """The fragments that a map reads, each once."""
    return list(dict.fromkeys(op.operands[0] for op in walk(map_) if op.name == "tensor.extract"))


def _counterparts(wide: ir.Operation, narrow: ir.Operation) -> list[ir.Value]:
    """For each result of a map, that of a map with fewer results of the same kind, or the only tile of its type which this one reads."""
    kinds = [[(str(r.type), str(kind)) for r, kind in zip(op.results, op.attributes["reductions"], strict=True)] for op in (wide, narrow)]
    left = list(zip(kinds[1], narrow.results, strict=True))
    # A tile that is not in the narrow map's results comes before its parts: kinds are matched from the last result on.
    found: list[ir.Value] = []
    for kind in reversed(kinds[0]):
        at = next((n for n in reversed(range(len(left))) if left[n][0] == kind), None)
        found.append(left.pop(at)[1] if at is not None else _only(value for value in _read(narrow) if str(value.type) == kind[0]))
    if left:
        raise Refused("maps of loops that follow each other make different fragments")
    return found[::-1]


def _only(values: Iterable[ir.Value]) -> ir.Value:
    found = list(values)
    if len(found) != 1:
        raise Refused("a map of one loop makes a tile that the other loop does not have")
    return found[0]
