"""Gives every attention op of a function, with the ops that consume its weights, a function of its own."""

from dataclasses import dataclass

from attn_mlir.mlir import func, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.linear_groups import LINEAR, leader_of, scan_of
from attn_mlir.passes.regions import block_of, clone_op, erase_unused, find_all, walk
from attn_mlir.passes.row_groups import elements_of, summed_elements
from attn_mlir.passes.shapes import SAME, SHAPES, ShapeFunction

_MAKERS = ("attn.attention", "attn.online", "attn.pairs", "attn.elements", "attn.row_dot", *LINEAR)
_CONSUMERS = ("attn.output", "attn.residual", "attn.query_sum", "attn.key_sum", "attn.scatter", "attn.collect")


@dataclass(frozen=True)
class Outline(Pass):
    """Splits functions with several attention ops: each op and its consumers move to a private function that is called instead.

    Arguments and results of such a function are exactly the tensors and scalars that the ops use and make; what nothing uses is left out.
    Its attribute `shapes` names a private function of the same arguments that returns the sizes of all dimensions of its results, as
    `tensor.dim` arithmetic. Where `same` numbers an argument, the result is that argument where it would have its shape: an
    `attn.head_sum` over groups of one head. A `crossing` gradient of log decays belongs to the backward scan that
    makes the last of what it adds up, and takes that scan's products and states where they are made, or with `gradients-apart` is
    a kernel of its own; with `share-states`, scans that have the same states, but for their order, as those for dk and dv, belong
    together; with `join-rows`, an `attn.row_dot` whose sums only the elements of its own rows read belongs to their `attn.elements`, so
    that rows come from memory once; with `join-heads`, elements that nothing but an `attn.head_sum` reads belong to it, where delta rules
    are differentiated, so that those of single heads are never in memory. A function that holds one such op and returns just its results
    gets `shapes` of its own and stays.
    A host may add two tensors; that stays after its calls. With `keep-hosts=false` the calling functions go, and there are no `shapes`.
    """

    name = "attn-outline"
    keep_hosts: bool = True
    share_states: bool = False
    gradients_apart: bool = False
    join_rows: bool = False
    join_heads: bool = False

    def run(self, module: ir.Operation) -> bool:
        for function in [op.operation for op in module.regions[0].blocks[0].operations if op.operation.name == "func.func"]:
            ops = find_all(function, *_MAKERS, *_CONSUMERS)
            if not ops:
                continue
            blocks = list(function.regions[0].blocks)
            for op in ops:
                if len(blocks) > 1 or op.block != blocks[0]:
                    op.location.emit_error(f"{self.name}: '{op.name}' must stand directly in a func.func of one block")
                    return False
            if not self._run(function):
                return False
        return True

    def _run(self, function: ir.Operation) -> bool:
        groups = _groups(function, self.share_states, self.gradients_apart)
        if groups is None:
            return False
        if self.join_rows:
            groups = _joined(groups)
        if self.join_heads and find_all(function, "attn.erase"):
            groups = _with_heads(groups)
        last = function.regions[0].blocks[0].operations[-1].operation
        returned = list(last.operands)
        if len(groups) == 1 and returned == _results(groups[0]):
            arguments = list(function.regions[0].blocks[0].arguments)
            if self.keep_hosts and SHAPES not in function.attributes:
                _write_shapes(function, groups[0], arguments)
            return True
        host = ir.StringAttr(function.attributes["sym_name"]).value
        made = {result for group in groups for result in _results(group)}
        sums = [view.operation for view in function.regions[0].blocks[0].operations if _is_sum(view.operation)]
        made.update(op.result for op in sums)
        if not all(value in made or isinstance(value.owner, ir.Block) for value in returned):
            last.location.emit_error(f"{self.name}: @{host} returns a value that no attention op makes")
            return False
        places: dict[ir.Value, ir.Location] = {}
        for number, group in enumerate(groups):
            _outline(function, group, f"{host}_{number}_{group[0].name.removeprefix('attn.')}", places, self.keep_hosts)
        for op in sums:
            op.move_before(last)
        erase_unused(block_of(function), "func.call")  # what only the moved ops needed, and those ops themselves
        if not self.keep_hosts:
            function.erase()
        return True


@dataclass(eq=False)
class _Waiting:
    """An op and those of its consumers that have no group yet."""

    maker: ir.Operation
    consumers: list[ir.Operation]

    def ready(self, made: set[ir.Value]) -> list[ir.Operation] | None:
        """The consumers that can run now, or None where the op itself cannot."""
        if not _is_ready(self.maker, None, made):
            return None
        return [consumer for consumer in self.consumers if _is_ready(consumer, self.maker, made)]


def _groups(function: ir.Operation, share_states: bool, apart: bool) -> list[list[ir.Operation]] | None:
    """The ops that belong together, in an order in which each group finds what it reads.

    A group is an op and those of its consumers that can run with it. A consumer that needs a result of a group that needs
    this one comes later, with a copy of the op.
    """
    waiting: list[_Waiting] = []
    for op in [view.operation for view in function.regions[0].blocks[0].operations]:
        maker = _maker_of(op, share_states, apart)
        if maker is not None:
            next(w for w in waiting if w.maker == maker).consumers.append(op)
        elif op.name in _MAKERS:
            waiting.append(_Waiting(op, []))
    waiting = [w for w in waiting if w.consumers or _results([w.maker])]
    made: set[ir.Value] = set()
    groups: list[list[ir.Operation]] = []
    while waiting:
        ready = [(w, w.ready(made)) for w in waiting]
        chosen = next((w for w, now in ready if now == w.consumers), None) or next((w for w, now in ready if now), None)
        if chosen is None:
            first = waiting[0].maker
            first.location.emit_error(f"attn-outline: '{first.name}' needs what is made of its own result")
            return None
        groups.append([chosen.maker, *(chosen.ready(made) or [])])
        made.update(_results(groups[-1]))
        chosen.consumers = [consumer for consumer in chosen.consumers if consumer not in groups[-1]]
        if not chosen.consumers:
            waiting.remove(chosen)
    return groups


def _joined(groups: list[list[ir.Operation]]) -> list[list[ir.Operation]]:
    """The groups, where sums of rows belong to the elements that read them."""
    found = [(group, elements_of(group[0])) for group in groups if len(group) == 1]
    joined = [(group, elements) for group, elements in found if elements is not None and sum(elements in each for each in groups) == 1]
    apart = [group for group in groups if not any(group is each for each, _ in joined)]
    return [[*group, *(op for each, elements in joined if elements in group for op in each)] for group in apart]


def _with_heads(groups: list[list[ir.Operation]]) -> list[list[ir.Operation]]:
    """The groups, where elements that only a sum over heads reads belong to it."""
    found = [(group, summed_elements(group[0])) for group in groups if len(group) == 1]
    joined = [(group, list(made)) for group, made in found if made is not None and list(made) in groups]
    apart = [group for group in groups if not any(group == made for _, made in joined)]
    return [[*group, *(op for head_sum, made in joined if head_sum is group for op in made)] for group in apart]


def _maker_of(op: ir.Operation, share_states: bool, apart: bool) -> ir.Operation | None:
    """The op that a consumer belongs to."""
    if op.name in _CONSUMERS:
        return op.operands[0].owner.operation
    scan = None if apart else scan_of(op)
    return scan or (leader_of(op) if share_states else None)


def _is_ready(op: ir.Operation, maker: ir.Operation | None, made: set[ir.Value]) -> bool:
    """Whether all results of attention ops that `op` reads are there; `maker` is the op that it runs with."""
    seen: set[ir.Value] = set()
    stack = _read_by([op])
    while stack:
        value = stack.pop()
        if value in made or value in seen or isinstance(value.owner, ir.Block) or (maker is not None and value.owner.operation == maker):
            continue
        if value.owner.operation.name in (*_MAKERS, *_CONSUMERS):
            return False
        seen.add(value)
        stack += _read_by([value.owner.operation])
    return True


def _read_by(ops: list[ir.Operation]) -> list[ir.Value]:
    """What the ops and their regions read from outside, in order."""
    nested = [op for root in ops for op in (root, *walk(root))]
    inside = {result for op in nested for result in op.results}
    inside.update(a for op in nested for region in op.regions for block in region.blocks for a in block.arguments)
    return list(dict.fromkeys(value for op in nested for value in op.operands if value not in inside))


def _results(group: list[ir.Operation]) -> list[ir.Value]:
    """The tensors that a group makes: o and rows, then what the consumers make; of linear attention, what is used."""
    return [result for op in group for result in _results_of(group, op)]


def _results_of(group: list[ir.Operation], op: ir.Operation) -> list[ir.Value]:
    return [result for result in op.results if not isinstance(result.type, ir.NoneType) and _is_made(group, op, result)]


def _is_made(group: list[ir.Operation], op: ir.Operation, result: ir.Value) -> bool:
    if op.name == "attn.row_dot" and op != group[0]:  # its elements read it inside of their regions
        return any(use.owner.operation.block == op.block for use in result.uses)
    if group[0].name == "attn.head_sum" and op != group[0]:
        return False
    return op.name not in LINEAR or any(use.owner.operation not in group for use in result.uses)


def _outline(host: ir.Operation, group: list[ir.Operation], name: str, places: dict[ir.Value, ir.Location], shapes: bool) -> None:
    """`places` holds the locations, and so the names, of the values for which results of calls stand."""
    block = host.regions[0].blocks[0]
    arguments, copied = _needs(group, block)
    results = _results(group)
    with group[0].location, ir.InsertionPoint(host):
        function = func.FuncOp(name, ir.FunctionType.get([a.type for a in arguments], [r.type for r in results]), visibility="private")
        locations = [places.get(argument, argument.location) for argument in arguments]
        entry = ir.Block.create_at_start(function.regions[0], [a.type for a in arguments], locations)
    mapping = dict(zip(arguments, entry.arguments, strict=True))
    with group[0].location, ir.InsertionPoint(entry):
        for op in [*copied, *sorted(group, key=lambda op: (op.name == "attn.head_sum") - (op.name == "attn.row_dot"))]:
            clone_op(op, mapping)
        func.ReturnOp([mapping[result] for result in results])
    with group[0].location, ir.InsertionPoint.at_block_terminator(block):
        call = func.CallOp([r.type for r in results], ir.FlatSymbolRefAttr.get(name), arguments).operation
    if shapes:
        _write_shapes(function.operation, group, arguments)
    for old, new in zip(results, call.results, strict=True):
        places[new] = old.location
        old.replace_all_uses_with(new)


def _needs(group: list[ir.Operation], block: ir.Block) -> tuple[list[ir.Value], list[ir.Operation]]:
    """The values that a function of the group takes, and the ops on them (sizes, constants) that it repeats."""
    stack, needed = _read_by(group), set()
    while stack:
        value = stack.pop()
        if value in needed:
            continue
        needed.add(value)
        if not isinstance(value.owner, ir.Block) and value.owner.operation.name != "func.call":
            stack += _read_by([value.owner.operation])
    arguments = [argument for argument in block.arguments if argument in needed]
    copied = []
    for op in [view.operation for view in block.operations]:
        if op.name == "func.call":
            arguments += [result for result in op.results if result in needed]
        elif any(result in needed for result in op.results):
            copied.append(op)
    return arguments, copied


def _write_shapes(function: ir.Operation, group: list[ir.Operation], arguments: list[ir.Value]) -> None:
    """The shape function of a function that holds, or stands for, a group; `arguments` are those values in terms of the group."""
    ShapeFunction(function, arguments).write((op, _results_of(group, op)) for op in group)
    if group[0].name == "attn.head_sum" and len(group) == 1:
        function.attributes[SAME] = ir.IntegerAttr.get(
            ir.IntegerType.get_signless(64, function.context), arguments.index(group[0].operands[0])
        )


def _is_sum(op: ir.Operation) -> bool:
    """Whether an op adds two tensors: gradients of one tensor that several ops read, which the host adds up."""
    return op.name == "arith.addf" and isinstance(op.results[0].type, ir.RankedTensorType)
