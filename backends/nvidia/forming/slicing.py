"""Slices of a role: the ops that some of its ops need, loops and conditions with only those values that are needed."""

from collections.abc import Callable, Iterable

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import clone_op, walk

_CONTROL = ("scf.for", "scf.if", "scf.while")


class Slice:
    """What is needed of a role's block so that `roots` run: loops, conditions, and the ops that make their values."""

    def __init__(self, block: ir.Block, roots: Iterable[ir.Operation]) -> None:
        self.block = block
        self.ops: set[ir.Operation] = set()
        self.carried: dict[ir.Operation, set[int]] = {}
        """Of loops and conditions: the results that are needed."""
        self.started: dict[ir.Operation, set[int]] = {}
        """Of `scf.while`, whose first block takes other numbers than it gives: those that are needed."""
        self._role = block.owner.operation
        self._todo: list[ir.Value] = []
        for op in roots:
            self._need(op)
        while self._todo:
            self._value(self._todo.pop())

    def _need(self, op: ir.Operation) -> None:
        """An op, with those around it, and what all of them use."""
        while op != self._role and op not in self.ops:
            self.ops.add(op)
            if op.name == "scf.while":
                self._todo.append(_last(op.regions[0].blocks[0]).operands[0])
            else:
                self._todo += list(op.operands)[:3] if op.name == "scf.for" else list(op.operands)
            if op.name not in _CONTROL:
                self._todo += [value for inner in walk(op) for value in inner.operands]
            above = op.parent
            if above is None:
                return
            op = above.operation

    def _value(self, value: ir.Value) -> None:
        if isinstance(value.owner, ir.Block):
            owner, number = value.owner.owner.operation, ir.BlockArgument(value).arg_number - 1
            if owner.name == "scf.for" and number >= 0:
                self._carry(owner, number)
            elif owner.name == "scf.while" and value.owner == owner.regions[0].blocks[0]:
                self._start(owner, number + 1)
            elif owner.name == "scf.while":
                self._carry(owner, number + 1)
            return
        op = value.owner.operation
        if not self._is_inside(op):
            return
        if op.name in _CONTROL:
            self._carry(op, list(op.results).index(value))
        else:
            self._need(op)

    def _carry(self, op: ir.Operation, number: int) -> None:
        known = self.carried.setdefault(op, set())
        if number in known:
            return
        known.add(number)
        self._need(op)
        if op.name == "scf.while":
            self._todo.append(_last(op.regions[0].blocks[0]).operands[1 + number])
            return
        if op.name == "scf.for":
            self._todo.append(op.operands[3 + number])
        self._todo += [_last(region.blocks[0]).operands[number] for region in op.regions]

    def _start(self, loop: ir.Operation, number: int) -> None:
        """Needs a number that the first block of `scf.while` takes: of before the loop, and of the iteration before."""
        known = self.started.setdefault(loop, set())
        if number not in known:
            known.add(number)
            self._need(loop)
            self._todo += [loop.operands[number], _last(loop.regions[1].blocks[0]).operands[number]]

    def _is_inside(self, op: ir.Operation) -> bool:
        above = op.parent
        while above is not None and above.operation != self._role:
            above = above.operation.parent
        return above is not None

    def clone(self, known: dict[ir.Value, ir.Value], special: Callable[[ir.Operation, dict[ir.Value, ir.Value]], bool]) -> None:
        """Clones the slice at the current insertion point; `special` clones an op in its own way, and says whether it has."""
        self._clone(self.block, known, special, None)

    def _clone(
        self,
        block: ir.Block,
        known: dict[ir.Value, ir.Value],
        special: Callable[[ir.Operation, dict[ir.Value, ir.Value]], bool],
        numbers: list[int] | None,
    ) -> None:
        for op in [view.operation for view in block.operations]:
            if op.name in ("scf.yield", "scf.condition") and numbers is not None:
                operands = [op.operands[n] for n in numbers]
                ir.Operation.create(op.name, operands=[known.get(value, value) for value in operands], loc=op.location)
            elif op not in self.ops or special(op, known):
                continue
            elif op.name in _CONTROL:
                self._control(op, known, special)
            else:
                clone_op(op, known)

    def _control(
        self, op: ir.Operation, known: dict[ir.Value, ir.Value], special: Callable[[ir.Operation, dict[ir.Value, ir.Value]], bool]
    ) -> None:
        numbers = sorted(self.carried.get(op, ()))
        if op.name == "scf.while":
            self._while(op, numbers, known, special)
            return
        fixed = list(op.operands)[:3] if op.name == "scf.for" else list(op.operands)
        starts = [op.operands[3 + n] for n in numbers] if op.name == "scf.for" else []
        made = ir.Operation.create(
            op.name,
            results=[op.results[n].type for n in numbers],
            operands=[known.get(v, v) for v in (*fixed, *starts)],
            regions=len(op.regions),
            loc=op.location,
        )
        for source, target in zip(op.regions, made.regions, strict=True):
            if not len(source.blocks):
                continue
            arguments = list(source.blocks[0].arguments)
            kept = [arguments[0], *(arguments[1 + n] for n in numbers)] if op.name == "scf.for" else []
            inner = target.blocks.append(*[a.type for a in kept], arg_locs=[a.location for a in kept])
            known.update(zip(kept, inner.arguments, strict=True))
            with ir.InsertionPoint(inner):
                self._clone(source.blocks[0], known, special, numbers)
        known.update(zip([op.results[n] for n in numbers], made.results, strict=True))

    def _while(
        self,
        op: ir.Operation,
        numbers: list[int],
        known: dict[ir.Value, ir.Value],
        special: Callable[[ir.Operation, dict[ir.Value, ir.Value]], bool],
    ) -> None:
        """A loop until a condition: its first block takes some numbers, and gives `numbers` to the second one, and as its results."""
        taken = sorted(self.started.get(op, ()))
        types, starts = [op.results[n].type for n in numbers], [op.operands[n] for n in taken]
        made = ir.Operation.create("scf.while", types, [known.get(v, v) for v in starts], regions=2, loc=op.location)
        handed = (taken, [0, *(1 + n for n in numbers)]), (numbers, taken)
        for source, target, (own, given) in zip(op.regions, made.regions, handed, strict=True):
            kept = [source.blocks[0].arguments[n] for n in own]
            inner = target.blocks.append(*[a.type for a in kept], arg_locs=[a.location for a in kept])
            known.update(zip(kept, inner.arguments, strict=True))
            with ir.InsertionPoint(inner):
                self._clone(source.blocks[0], known, special, given)
        known.update(zip([op.results[n] for n in numbers], made.results, strict=True))


def _last(block: ir.Block) -> ir.Operation:
    return block.operations[-1].operation
