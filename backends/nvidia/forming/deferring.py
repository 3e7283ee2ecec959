"""Sums of rows that a loop carries: how they become parts, which the threads of a row add up behind the loop."""

from dataclasses import dataclass, field

from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.regions import element_of
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import clone_op, maker


@dataclass
class CarriedSum:
    """The row values that `loop` carries as its value number `number`.

    `chain` holds what an iteration makes of them, in order: fragments that are a linear sum of them and of reduced parts.
    """

    loop: ir.Operation
    number: int
    chain: list[ir.Value] = field(default_factory=list)

    @property
    def argument(self) -> ir.Value:
        """The value that an iteration begins with."""
        return list(self.loop.regions[0].blocks[0].arguments)[1 + self.number]

    def check(self) -> None:
        """Raises Refused where a loop does more with the values than to scale them, and to add reduced parts."""
        found = fragment(self.argument.type)
        if found is None or found.form != "rows" or found.element != "f32":
            raise Refused("the loop carries no row values of f32")
        self._start()
        last = self._yield()
        if not self._is_linear(last.operands[self.number]) or self.argument not in self.chain:
            raise Refused("a loop does more with row values than to scale them and to add sums of parts")
        maps = [op for value in self.chain if (op := maker(value, "warp.map")) is not None]
        for value in self.chain:
            for use in value.uses:
                op = use.owner.operation
                above = op.parent.operation if op.parent is not None else op
                hands_on = op.name == "scf.yield" and op in (last, *_yields(self.chain))
                if not hands_on and not (op.name == "tensor.extract" and above in maps and self._reads_for(above, op.results[0])):
                    raise Refused("something else reads the row values that a loop adds up")

    def defer(self) -> None:
        """Lets the loop carry parts, and reduces them behind it; what `check` has found to be right."""
        start = self._start()
        rows, loop = ir.RankedTensorType(self.argument.type), self.loop
        with loop.location, ir.InsertionPoint(loop):
            kind = _parts_of(rows)
            parts = start.operands[0] if start.name == "warp.reduce" else _zeros(kind)
        maps = [value for value in self.chain if maker(value, "warp.map") is not None]
        for value in self.chain:
            if value not in maps:
                value.set_type(kind)
        loop.results[self.number].set_type(kind)
        loop.operands[3 + self.number] = parts
        for value in maps:
            self._split(value, kind)
        behind = loop.results[self.number]
        uses = [(use.owner.operation, use.operand_number) for use in behind.uses]
        with loop.location, ir.InsertionPoint.after(loop):
            whole = build.op("reduce", [behind], [rows], kind="sum").result
        for op, operand in uses:
            op.operands[operand] = whole

    # ---- what is there

    def _yield(self) -> ir.Operation:
        return self.loop.regions[0].blocks[0].operations[-1].operation

    def _start(self) -> ir.Operation:
        """What makes the values before the loop: zeros, or a sum of parts. Raises Refused for others."""
        value = self.loop.operands[3 + self.number]
        made = maker(value, "warp.map", "warp.reduce")
        if made is not None and made.name == "warp.reduce" and ir.StringAttr(made.attributes["kind"]).value == "sum":
            return made
        if made is not None and made.name == "warp.map":
            first = maker(element_of(value), "arith.constant")
            if first is not None and ir.FloatAttr(first.attributes["value"]).value == 0.0:
                return made
        raise Refused("row values begin with something else than zeros or a sum of parts")

    def _is_linear(self, value: ir.Value) -> bool:
        """Whether row values are a linear sum of the carried ones and of reduced parts; notes them."""
        if value == self.argument:
            self._note(value)
            return True
        made = maker(value, "warp.reduce", "warp.map", "scf.if")
        if made is None or not self._is_inside(made):
            return False
        if made.name == "warp.reduce":
            return self._sum_of(value) is not None
        number = ir.OpResult(value).result_number
        if made.name == "scf.if":
            linear = all(self._is_linear(region.blocks[0].operations[-1].operation.operands[number]) for region in made.regions)
        else:
            linear = len(list(made.regions[0].blocks[0].arguments)) == 1 and self._adds(element_of(value))
        if linear:
            self._note(value)
        return linear

    def _sum_of(self, value: ir.Value) -> ir.Value | None:
        """The parts of which an iteration has summed row values up."""
        made = maker(value, "warp.reduce")
        summed = made is not None and ir.StringAttr(made.attributes["kind"]).value == "sum" and self._is_inside(made)
        return made.operands[0] if summed and made is not None else None

    def _note(self, value: ir.Value) -> None:
        if value not in self.chain:
            self.chain.append(value)

    def _is_inside(self, op: ir.Operation) -> bool:
        above = op.parent
        while above is not None and above.operation != self.loop:
            above = above.operation.parent
        return above is not None

    def _adds(self, scalar: ir.Value) -> bool:
        """Whether a number of a map is linear in what is added up."""
        made = maker(scalar, "tensor.extract", "arith.addf", "arith.mulf")
        if made is None:
            return False
        if made.name == "tensor.extract":
            return self._is_linear(made.operands[0])
        linear = [self._adds(operand) for operand in made.operands]
        return all(linear) if made.name == "arith.addf" else linear.count(True) == 1 and not self._mixes(made, linear)

    def _mixes(self, product: ir.Operation, linear: list[bool]) -> bool:
        """Whether the factor of a product depends on what is added up, too."""
        todo, seen = [product.operands[linear.index(False)]], set[ir.Value]()
        while todo:
            value = todo.pop()
            made = None if isinstance(value.owner, ir.Block) else value.owner.operation
            if value in seen or made is None or made.block != product.block:
                continue
            seen.add(value)
            if made.name == "tensor.extract" and (made.operands[0] in self.chain or self._sum_of(made.operands[0]) is not None):
                return True
            todo += made.operands
        return False

    def _reads_for(self, map_: ir.Operation, scalar: ir.Value) -> bool:
        """Whether a map reads a number for the sum alone."""
        last = map_.regions[0].blocks[0].operations[-1].operation
        own = {n for n, result in enumerate(map_.results) if result in self.chain}
        reached = {scalar}
        for view in map_.regions[0].blocks[0].operations:
            if any(v in reached for v in view.operation.operands):
                reached |= set(view.operation.results)
        return all(n in own for n, v in enumerate(last.operands) if v in reached)

    # ---- what becomes of it

    def _split(self, value: ir.Value, kind: ir.RankedTensorType) -> None:
        """Makes a result of a map parts, by a map of its own behind it."""
        old = value.owner.operation  # type: ignore[union-attr]
        number, block = ir.OpResult(value).result_number, old.regions[0].blocks[0]
        yielded = list(block.operations[-1].operation.operands)
        others = [n for n in range(len(yielded)) if n != number]
        with old.location, ir.InsertionPoint(old):
            made = _map_of(old, [yielded[n] for n in others], [ir.RankedTensorType(old.results[n].type) for n in others])
            result = dict(zip([yielded[n] for n in others], made, strict=True))

            def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
                known: dict[ir.Value, ir.Value] = {block.arguments[0]: i}
                return [self._part(yielded[number], known, result, (i, j))]

            parts = build.map_(list(kind.shape), [kind], [""], body)[0]
        for n, replacement in zip(others, made, strict=True):
            old.results[n].replace_all_uses_with(replacement)
        value.replace_all_uses_with(parts)
        self.chain[self.chain.index(value)] = parts
        old.erase()

    def _part(
        self, scalar: ir.Value, known: dict[ir.Value, ir.Value], result: dict[ir.Value, ir.Value], place: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        """A number of a map over row values, in one over parts; those that the map gives anyway are read."""
        if scalar in known or isinstance(scalar.owner, ir.Block):
            return known.get(scalar, scalar)
        op = scalar.owner.operation
        read = op.operands[0] if op.name == "tensor.extract" else None
        read = self._sum_of(read) or read if read is not None else None
        parts = read is not None and (found := fragment(read.type)) is not None and found.form == "parts"
        if parts:
            known[scalar] = ir.Operation.create("tensor.extract", results=[scalar.type], operands=[read, *place]).result
        elif scalar in result:
            known[scalar] = ir.Operation.create("tensor.extract", results=[scalar.type], operands=[result[scalar], place[0]]).result
        elif op.parent is None or op.parent.operation.name != "warp.map":
            return scalar
        else:
            for operand in op.operands:
                known[operand] = self._part(operand, known, result, place)
            clone_op(op, known)
        return known[scalar]


def _yields(chain: list[ir.Value]) -> list[ir.Operation]:
    """The ends of the branches that hand linear sums on."""
    branches = [op for value in chain if (op := maker(value, "scf.if")) is not None]
    return [region.blocks[0].operations[-1].operation for op in branches for region in op.regions]


def _parts_of(rows: ir.RankedTensorType) -> ir.RankedTensorType:
    """The type of the parts of row values."""
    found = fragment(rows)
    assert found is not None
    return ir.RankedTensorType(build.fragment_type(found.instruction, "parts", [*rows.shape, found.layout.parts], rows.element_type))


def _zeros(kind: ir.RankedTensorType) -> ir.Value:
    zero = arith.ConstantOp(kind.element_type, 0.0).result
    return build.map_(list(kind.shape), [kind], [""], lambda i, j: [zero])[0]


def _map_of(old: ir.Operation, scalars: list[ir.Value], types: list[ir.RankedTensorType]) -> list[ir.Value]:
    """A map like another one, but of some of its numbers alone; none if there are none."""
    if not scalars:
        return []
    block = old.regions[0].blocks[0]
    needed = set(scalars)
    ops = [view.operation for view in block.operations][:-1]
    for op in reversed(ops):
        if any(result in needed for result in op.results):
            needed |= set(op.operands)

    def body(*places: ir.Value) -> list[ir.Value]:
        known: dict[ir.Value, ir.Value] = dict(zip(block.arguments, places, strict=True))
        for op in ops:
            if any(result in needed for result in op.results):
                clone_op(op, known)
        return [known.get(scalar, scalar) for scalar in scalars]

    return build.map_(list(types[0].shape), types, [""] * len(types), body)
