"""Gives sums over queries that do not fit into registers together kernels of their own."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.materialize_pairs import is_wide
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.target import HOPPER, TARGETS
from attn_mlir.dialects.numbers import i64
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, piece
from attn_mlir.passes.rows_of_pairs import may_be_rows


@dataclass(frozen=True)
class SplitPairs(Pass):
    """Makes two `attn.pairs` of one whose sums over queries (`attn.key_sum`, as dk and dv) have more than 256 columns together, and
    one more than 128.

    On Hopper two sums alone, as dk and dv of softmax without a dense bias, stay together: warpgroups have a weight each. Else
    the one keeps the sums of the first weights, as dv; the other one all the rest, as dk, dq and gradients of captured tensors. Each
    computes the weights that it needs, from the products that these need: the scores of softmax are computed twice, six products in place
    of five, where no kernel of matrix instructions could hold all sums. `arch` is the chip that kernels are for. Where tensors are not f16
    or bf16, nothing changes, nor where `gpu-materialize-pairs` takes over. A single sum over keys, as dq, gets pairs of its own, of which
    `attn-rows-of-pairs` makes an attention, on Hopper where it has more than 128 columns: additions to memory would take longer than the
    two products that are computed again. `queries`: at any width. Not so with lists of keys, nor where other ops read the sum.
    """

    name = "nvidia-split-pairs"
    arch: str = "sm_90a"
    queries: bool = False

    def run(self, module: ir.Operation) -> bool:
        if self.arch not in TARGETS:
            module.location.emit_error(f"{self.name}: `arch` must be one of {', '.join(TARGETS)}, got '{self.arch}'")
            return False
        for pairs in find_all(module, "attn.pairs"):
            if self.arch == HOPPER.arch and not self.queries and _has_roles(pairs):
                _split_queries(pairs)
            elif not is_wide(pairs) and all(_is_half(value) for product in find_all(pairs, "attn.product") for value in product.operands):
                _split(pairs)
                if (self.queries or (self.arch == HOPPER.arch and _is_wide(pairs))) and may_be_rows(pairs):
                    _split_queries(pairs)
        return True


def _split(pairs: ir.Operation) -> None:
    """Gives the sums of the first weights pairs of their own, where not all fit into a kernel."""
    users = [use.owner.operation for use in pairs.results[0].uses]
    sums = [op for op in users if op.name == "attn.key_sum"]
    columns = [ir.RankedTensorType(op.results[0].type).shape[3] for op in sums]
    if sum(columns) <= thresholds.SUM_COLUMNS or max(columns) <= thresholds.WHOLE_COLUMNS:
        return
    first = min((min(_weights(op)) for op in sums), default=0)
    apart = [op for op in sums if _weights(op) == [first]]
    rest = [op for op in users if op not in apart]
    if not apart or not [op for op in sums if op in rest]:
        return
    with pairs.location, ir.InsertionPoint(pairs):
        other = clone_op(pairs, {})
    for op in apart:
        op.operands[0] = other.results[0]
    _prune(other, apart)
    _prune(pairs, rest)


def _has_roles(pairs: ir.Operation) -> bool:
    """Whether both sums over queries are made by one kernel, whose warpgroups have a weight each (`hopper/pairs_weights.py`).

    They are sums of two weights, of which one needs one product alone, of numbers that no pair has for itself. Columns are multiples of 8:
    others are for another emitter. Steps of 48 queries, which narrower sums take, have no dropout.
    """
    users = [use.owner.operation for use in pairs.results[0].uses]
    sums = [op for op in users if op.name == "attn.key_sum"]
    columns = [ir.RankedTensorType(op.results[0].type).shape[3] for op in sums]
    taken = sorted(weight for op in sums for weight in _weights(op))
    apart = [op for op in users if op.name == "attn.query_sum"]
    alone = len(users) == len(sums) + len(apart) and may_be_rows(pairs) and piece(pairs, "attn.key_lists") is None
    if apart:
        alone = alone and len(apart) == 1 and len(_weights(apart[0])) == 1 and _is_wide(pairs)
    if not alone or taken != [0, 1] or sum(columns) <= thresholds.SUM_COLUMNS or max(columns) > thresholds.SUM_COLUMNS:
        return False
    products, (pair,) = find_all(pairs, "attn.product"), find_all(pairs, "attn.pair")
    if (
        any(number % 8 for number in columns)
        or len(products) != 2
        or not all(_is_half(value) for product in products for value in product.operands)
    ):
        return False
    block = pair.regions[0].blocks[0]
    *ops, last = [view.operation for view in block.operations]
    scores, (query, key) = list(block.arguments)[:2], list(block.arguments)[-2:]
    needs = [[_reads(value, score) for score in scores] for value in last.operands]
    if len(needs) != 2 or not any(sum(need) == 1 for need in needs):
        return False
    known = ("arith.", "math.", "tensor.", *(["attn.kept"] if sum(columns) > thresholds.BOTH_SUMS else []))
    own = [op for op in ops if not op.name.startswith(known)]
    read = [op for op in ops if op.name == "tensor.extract"]
    return not own and not any(_reads(op.results[0], query) and _reads(op.results[0], key) for op in read)


def _reads(value: ir.Value, argument: ir.Value) -> bool:
    """Whether a value of a block is computed from an argument of it."""
    if isinstance(value.owner, ir.Block):
        return value == argument
    return any(_reads(operand, argument) for operand in value.owner.operation.operands)


def _is_wide(pairs: ir.Operation) -> bool:
    """Whether a sum over keys has more columns than a kernel adds to memory at the speed of its products."""
    sums = [use.owner.operation for use in pairs.results[0].uses if use.owner.operation.name == "attn.query_sum"]
    return bool(sums) and ir.RankedTensorType(sums[0].results[0].type).shape[3] > thresholds.WHOLE_COLUMNS


def _split_queries(pairs: ir.Operation) -> None:
    """Gives a sum over keys pairs of its own, which compute its weight again."""
    users = [use.owner.operation for use in pairs.results[0].uses]
    apart = [op for op in users if op.name == "attn.query_sum"]
    rest = [op for op in users if op not in apart]
    if len(apart) != 1 or len(_weights(apart[0])) != 1 or not rest:
        return
    with pairs.location, ir.InsertionPoint(pairs):
        other = clone_op(pairs, {})
    apart[0].operands[0] = other.results[0]
    _prune(other, apart)
    _prune(pairs, rest)


def _is_half(value: ir.Value) -> bool:
    """Whether matrix instructions multiply it as it is."""
    return str(ir.RankedTensorType(value.type).element_type) in ("f16", "bf16")


def _weights(op: ir.Operation) -> list[int]:
    """Which weights of pairs an op takes."""
    if "weights" in op.attributes:
        return list(ir.DenseI64ArrayAttr(op.attributes["weights"]))
    return [ir.IntegerAttr(op.attributes["weight"]).value]


def _prune(pairs: ir.Operation, users: list[ir.Operation]) -> None:
    """Drops weights that nobody takes, and products that the others do not need."""
    (pair,) = find_all(pairs, "attn.pair")
    block = pair.regions[0].blocks[0]
    *ops, last = [view.operation for view in block.operations]
    used = sorted({weight for op in users for weight in _weights(op)})
    with last.location, ir.InsertionPoint(last):
        ir.Operation.create("attn.yield", operands=[last.operands[n] for n in used])
    last.erase()
    for op in users:
        _renumber(op, used)
    for op in reversed(ops):
        if all(not list(result.uses) for result in op.results):
            op.erase()
    products = find_all(pairs, "attn.product")
    for number in reversed(range(len(products))):
        if len(products) > 1 and not list(block.arguments[number].uses):
            block.erase_argument(number)
            products.pop(number).erase()


def _renumber(op: ir.Operation, used: list[int]) -> None:
    numbers = [used.index(weight) for weight in _weights(op)]
    if "weights" in op.attributes:
        op.attributes["weights"] = ir.DenseI64ArrayAttr.get(numbers, op.context)
    else:
        with op.context:
            op.attributes["weight"] = i64(numbers[0])
