"""Lets the thread that draws tiles tell numbers of a tile to all warps, instead of each of them computing them again."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from attn_mlir.backends.gpu.scalar_bounds import reads_work
from attn_mlir.backends.nvidia.forming.facts import chosen
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.backends.nvidia.warp.numbers import COUNTS, Numbers
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import is_shared, stages_and_arrivals
from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker, walk


@dataclass(frozen=True)
class TellNumbers(Pass):
    """The thread that draws a tile computes where it is, which keys it sees, and whatever else follows from its number alone, a tile
    ahead, and writes it beside the number; all roles, its own as well, read it. Of packed sequences that includes the item of the list of
    work, and where its sequence lies. What depends on the warpgroup, too, they compute themselves, and so what does not fit 32 bits. They
    say that they have heard a message when they have read all of it.

    A kernel stays as it is, with the reason in `warp.refused`, where `warp.schedule` does not have `tell` = 1 (or the option `always` is
    given), no tiles are drawn, or there is nothing to tell.
    """

    name = "warp-tell-numbers"
    always: bool = False

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, self._tell)
        return True

    def _tell(self, kernel: ir.Operation) -> None:
        if not self.always and not chosen(kernel, "tell", 0, 0):
            raise Refused("the schedule lets each warp compute the numbers of its tiles")
        roles = find_all(kernel, "warp.role")
        draws = [op for op in find_all(kernel, "warp.next_tile")]
        sends = [op for op in find_all(roles[0], "memref.store") if draws and is_shared(op.operands[1].type, 2)] if roles else []
        if len(draws) != 1 or len(sends) != 1:
            raise Refused("no role draws tiles and tells them to others")
        listeners = [_Listener.of(role) for role in roles]
        told = [each.numbers() for each in listeners]
        count = sum(map(len, told))
        if not count:
            raise Refused("nothing follows from the number of a tile alone")
        first = roles[0]
        with first.location, ir.InsertionPoint(first), build.named("numbers"):
            whole = ir.IntegerType.get_signless(32)
            stages = stages_and_arrivals(listeners[0].heard.operands[0].type)[0]
            slots = build.op("alloc", results=[build.shared_type([stages, count], whole, 0)]).result
        begin = 0
        for listener, numbers in zip(listeners, told, strict=True):
            _send(sends[0], listener, numbers, (slots, begin))
            listener.hear(numbers, (slots, begin))
            begin += len(numbers)


@dataclass
class _Listener:
    """A role that hears which tile is next. `tile`: its number; `loop`: what goes on while there are tiles; `heard`: says so."""

    role: ir.Operation
    loop: ir.Operation
    tile: ir.Value
    heard: ir.Operation
    _known: dict[ir.Value, bool] = field(default_factory=dict)

    @staticmethod
    def of(role: ir.Operation) -> "_Listener":
        loops = [op for op in (view.operation for view in role.regions[0].blocks[0].operations) if op.name == "scf.while"]
        before = [op for loop in loops for op in (view.operation for view in loop.regions[0].blocks[0].operations)]
        loads = [op for op in before if op.name == "memref.load" and is_shared(op.operands[0].type, 2)]
        arrivals = [op for op in before if op.name == "warp.arrive"]
        if len(loops) != 1 or len(loads) != 1 or len(arrivals) != 1:
            raise Refused("a role hears of tiles in another way than that of warp-draw-tiles")
        return _Listener(role, loops[0], loops[0].regions[1].blocks[0].arguments[1], arrivals[0])

    def numbers(self) -> list[ir.Value]:
        """What is told: numbers that ops use which follow from more than the tile, or that cannot be told."""
        ranges, found = Numbers(), dict[ir.Value, None]()
        ops = [view.operation for view in self.loop.regions[1].blocks[0].operations]
        pure = [op for op in ops if self._follows(op)]
        made = {value for op in pure for value in op.results}
        can = {value for value in made if _is_count(value, ranges) and self._depends(value)}
        others = [op for op in ops if op not in pure]
        wanted = _used(inner for op in others for inner in (op, *walk(op)))
        while wanted:
            value = wanted.pop()
            if value in can:
                found[value] = None
            elif value in made:
                wanted += value.owner.operation.operands
        return [value for op in pure for value in op.results if value in found]

    def _follows(self, op: ir.Operation) -> bool:
        """Whether an op computes numbers from the tile's and from what the kernel knows."""
        computed = op.name.startswith("arith.") or reads_work(op)
        return computed and all(self._is_known(value) for value in op.operands) and len(list(op.results)) == 1

    def _is_known(self, value: ir.Value) -> bool:
        if value not in self._known:
            self._known[value] = value == self.tile or self._is_outside(value) or self._is_computed(value)
        return self._known[value]

    def _is_computed(self, value: ir.Value) -> bool:
        return not isinstance(value.owner, ir.Block) and self._follows(value.owner.operation)

    def _is_outside(self, value: ir.Value) -> bool:
        """Whether a value is one of the kernel, that all roles see."""
        block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
        return block == self.role.block

    def _depends(self, value: ir.Value) -> bool:
        """Whether a number is another one for other tiles."""
        if value == self.tile:
            return True
        return not isinstance(value.owner, ir.Block) and any(map(self._depends, value.owner.operation.operands))

    def copy(self, value: ir.Value, known: dict[ir.Value, ir.Value]) -> ir.Value:
        """Computes a number at the insertion point."""
        if value in known or self._is_outside(value):
            return known.get(value, value)
        for operand in value.owner.operation.operands:
            self.copy(operand, known)
        clone_op(value.owner.operation, known)
        return known[value]

    def hear(self, numbers: list[ir.Value], place: tuple[ir.Value, int]) -> None:
        """Reads what is told before this role says that it has heard it."""
        slots, begin = place
        after = self.loop.regions[1].blocks[0]
        stages = stages_and_arrivals(self.heard.operands[0].type)[0]
        with self.heard.location, ir.InsertionPoint.at_block_begin(after):
            stage, _ = build.stage(after.arguments[0], stages)
            read = [memref.LoadOp(slots, [stage, build.index(begin + n)]).result for n in range(len(numbers))]
            build.op("arrive", [self.heard.operands[0], stage])
            ranges = Numbers()
            for value, told in zip(numbers, read, strict=True):
                low, high = ranges.of(value)
                number = arith.IndexCastOp(ir.IndexType.get(), told).result
                # What is known of it is told, so that printers count in 32 bits.
                value.replace_all_uses_with(arith.MaxSIOp(arith.MinSIOp(number, build.index(high)).result, build.index(low)).result)
        self.heard.erase()


def _send(store: ir.Operation, listener: _Listener, numbers: list[ir.Value], place: tuple[ir.Value, int]) -> None:
    """Writes numbers of the tile whose number is stored."""
    slots, begin = place
    cast = maker(store.operands[0], "arith.index_cast")
    if cast is None:
        raise Refused("the number of a tile is told in another way than that of warp-draw-tiles")
    known = {listener.tile: cast.operands[0]}
    with store.location, ir.InsertionPoint(store):
        for n, value in enumerate(numbers):
            number = arith.IndexCastOp(ir.IntegerType.get_signless(32), listener.copy(value, known)).result
            memref.StoreOp(number, slots, [store.operands[2], build.index(begin + n)])


def _used(ops: Iterable[ir.Operation]) -> list[ir.Value]:
    return list(dict.fromkeys(value for op in ops for value in op.operands))


def _is_count(value: ir.Value, ranges: Numbers) -> bool:
    low, high = ranges.of(value)
    return isinstance(value.type, ir.IndexType) and low >= -COUNTS[1] and high <= COUNTS[1]
