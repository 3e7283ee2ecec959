"""Recognises kernels of grid "chunks" that multiply 16-bit tiles: what a sweep loads, computes and stores."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, constant, maker, operations, yielded
from attn_mlir.backends.nvidia.hopper.sweep_forms import (
    Input,
    OtherKernelError,
    flag,
    input_of,
    is_copy,
    is_rest,
    made,
    need,
    rank,
    scaled,
    sources,
    view_of,
)
from attn_mlir.mlir import ir

CHUNK = 64
"""Positions of a chunk."""
PANEL = 64
"""Columns of a panel of shared memory, and columns of v that a warpgroup works on."""
KEYS = (64, 128, 256)
"""Columns of q and k."""
VALUES = (64, 128)
"""Columns of v of one program."""


@dataclass(kw_only=True)
class Sweep:
    """One kernel. `loop` carries `state`; `steps`, `leave`, `enter` and `carry` are maps of rank 1.

    `steps`: the log decays, whose sums are `prefix` and, of the whole chunk, `total` (None: no decays); `leave` scales what the state gives
    to rows of o, `enter` rows of v on their way into the state, `carry` the state. `weights` makes P of `scores`, `count` rows exist.
    `exact`: products with the state take what rounding leaves out of it, and of rows of v on their way into it, too.
    `transposed`: states in memory have a row for each column of v. The stores are None where the kernel has no such result.
    """

    kernel: ir.Operation
    loop: ir.Operation
    state: ir.Value
    following: ir.Value
    initial: ir.Operation | None
    q: Input
    k: Input
    v: Input
    factor: Input | None
    steps: ir.Operation | None
    prefix: ir.Value | None
    total: ir.Value | None
    weights: ir.Operation
    scores: ir.Value
    leave: ir.Operation
    enter: ir.Operation
    carry: ir.Operation
    exact: bool
    transposed: bool
    output: ir.Operation
    products: ir.Operation | None
    states: ir.Operation | None
    branch: ir.Operation | None
    final: ir.Operation | None

    @property
    def count(self) -> ir.Value:
        """How many rows of the chunk exist."""
        return self.output.operands[5]

    @property
    def keys(self) -> int:
        """Columns of q and k."""
        return self.k.columns

    @property
    def values(self) -> int:
        """Columns of v that a program works on."""
        return self.v.columns

    @property
    def element(self) -> str:
        """ "f16" or "bf16"."""
        return str(ir.RankedTensorType(self.k.load.results[0].type).element_type)

    @property
    def inputs(self) -> dict[str, Input]:
        """The tiles of a stage by name."""
        return {"q": self.q, "k": self.k, "v": self.v, **({"factor": self.factor} if self.factor else {})}


def read_sweep(kernel: ir.Operation) -> Sweep | None:
    """The sweep that a kernel is; None for a kernel of another form."""
    try:
        return _read(kernel)
    except OtherKernelError:
        return None


def _read(kernel: ir.Operation) -> Sweep:
    need("sequences" not in ir.DictAttr(kernel.attributes["tile.kernel"]))
    loops = [op for op in operations(body(kernel)) if op.name == "scf.for"]
    need(len(loops) == 1 and len(loops[0].results) == 1)
    loop = loops[0]
    inner, (_, state) = operations(body(loop)), body(loop).arguments
    last = made(yielded(body(loop))[0], "tile.dot_rescale", "tile.dot_add")
    following = last if last.name == "tile.dot_rescale" else made(last.operands[0], "tile.dot_rescale")
    need(following.operands[0] == state and flag(following, "transpose_a") and not flag(following, "transpose_b"))
    stores = [op for op in inner if op.name == "tile.store"]
    outputs = [op for op in stores if rank(op.operands[0]) == 2 and op.operands[0] not in (state, last.results[0])]
    need(len(outputs) == 1)
    sums = made(outputs[0].operands[0], "tile.dot_rescale")
    whole = made(sums.operands[0], "tile.dot", "tile.dot_add")
    from_state = whole if whole.name == "tile.dot" else made(whole.operands[0], "tile.dot")
    held = made(from_state.operands[1], "tile.map")
    transposed = flag(from_state, "transpose_b")
    need(is_copy(held, state) and not flag(sums, "transpose_a") and not flag(sums, "transpose_b"))
    left, right = following.operands[2], following.operands[3]
    entering, keys = (left, right) if transposed else (right, left)
    values, enter = scaled(made(entering, "tile.map"))
    rests = _rests((from_state, whole, 1), (following, last, 0 if transposed else 1))
    weights = made(sums.operands[2], "tile.map")
    need(len(sources(weights, 2)) == 1)
    (scores,) = sources(weights, 2)
    product = made(scores, "tile.dot")
    need(flag(product, "transpose_b") and product.operands[0] == from_state.operands[0])
    need(product.operands[1] == keys and sums.operands[3] == values)
    leave, carry = made(sums.operands[1], "tile.map"), made(following.operands[1], "tile.map")
    prefix, steps, total = _decays([leave, enter, carry, weights], loop)
    factor, products = _products(stores, outputs[0])
    states, branch = _states(inner, state, last.results[0])
    finals = [op for op in operations(body(kernel)) if op.name == "tile.store"]
    need(len(finals) <= 1 and all(op.operands[0] == loop.results[0] for op in finals))
    sweep = Sweep(
        kernel=kernel, loop=loop, state=state, following=last.results[0], initial=_initial(list(loop.operands)[3]),
        q=input_of(product.operands[0]), k=input_of(keys), v=input_of(values), factor=factor, steps=steps, prefix=prefix, total=total,
        weights=weights, scores=scores, leave=leave, enter=enter, carry=carry, exact=bool(rests), transposed=transposed, output=outputs[0],
        products=products, states=states, branch=branch, final=finals[0] if finals else None,
    )  # fmt: skip
    used = [
        *rests,
        whole,
        last,
        following,
        sums,
        from_state,
        held,
        maker(entering),
        weights,
        product,
        leave,
        enter,
        carry,
        steps,
        outputs[0],
        products,
        branch,
    ]
    used += [maker(value) for value in (product.operands[0], keys, values, *([] if prefix is None else [prefix]))]
    used += [each.load for each in sweep.inputs.values()] + ([] if products is None else [maker(products.operands[0])])
    _check(sweep, inner, [op for op in [*used, states if branch is None else None] if op is not None])
    return sweep


def _rests(*products: tuple[ir.Operation, ir.Operation, int]) -> list[ir.Operation]:
    """Maps that make what rounding leaves out, where products add that: of a product, the one that adds to it, and which factor.

    None of the products may do so, or all.
    """
    found: list[ir.Operation] = []
    for rounded, added, which in products:
        if added == rounded:
            continue
        factors, others = list(rounded.operands)[-2:], list(added.operands)[-2:]
        hi, lo = made(factors[which], "tile.map"), made(others[which], "tile.map")
        need(factors[1 - which] == others[1 - which] and is_rest(lo, hi))
        need(all(flag(rounded, name) == flag(added, name) for name in ("transpose_a", "transpose_b")))
        found.append(lo)
    need(len(found) in (0, len(products)))
    return found


def _check(sweep: Sweep, inner: list[ir.Operation], used: list[ir.Operation]) -> None:
    """Sizes and types are those of the generated code, and no op of the loop is left over."""
    need(list(ir.RankedTensorType(sweep.scores.type).shape) == [CHUNK, CHUNK] and sweep.keys in KEYS and sweep.values in VALUES)
    loads = [each.load for each in sweep.inputs.values()]
    kinds = {str(ir.RankedTensorType(load.results[0].type).element_type) for load in loads}
    kinds.add(str(ir.MemRefType(sweep.output.operands[1].type).element_type))
    need(len(kinds) == 1 and sweep.element in ("f16", "bf16"))
    need(all(load.operands[3] == sweep.output.operands[4] and load.operands[4] == sweep.count for load in loads))
    stored = [op for op in (sweep.output, sweep.products, sweep.states, sweep.final) if op is not None]
    for memory in [*(op.operands[1] for op in stored), *([] if sweep.initial is None else [sweep.initial.operands[0]])]:
        view_of(memory)
    need(sweep.factor is None or (not sweep.factor.factors and sweep.factor.mod is None))
    for op in inner:
        if op.name.startswith(("tile.", "scf.")) and op.name != "scf.yield":
            need(op in used)


def _decays(maps: list[ir.Operation], loop: ir.Operation) -> tuple[ir.Value | None, ir.Operation | None, ir.Value | None]:
    """The sums of log decays that maps read, the same in all; the map that makes the decays; the last sum, as it is read in the loop."""
    found = list(dict.fromkeys(value for op in maps for value in sources(op, 1)))
    need(len(found) <= 1)
    if not found:
        return None, None, None
    sums = made(found[0], "tile.cumsum")
    need(not flag(sums, "reverse"))
    reads = [op for op in operations(body(loop)) if op.name == "tensor.extract" and op.operands[0] == found[0]]
    need(len(reads) <= 1 and all(constant(op.operands[1]) == CHUNK - 1 for op in reads))
    return found[0], made(sums.operands[0], "tile.map"), reads[0].results[0] if reads else None


def _products(stores: list[ir.Operation], output: ir.Operation) -> tuple[Input | None, ir.Operation | None]:
    """The sums over columns of o times a factor: the factor's tile and the store."""
    rows = [op for op in stores if rank(op.operands[0]) == 1]
    need(len(rows) <= 1)
    if not rows:
        return None, None
    op = made(rows[0].operands[0], "tile.map")
    values, kinds = yielded(body(op)), [ir.StringAttr(each).value for each in ir.ArrayAttr(op.attributes["reductions"])]
    need(kinds == ["sum"] and len(values) == 1)
    sides = []
    for operand in made(values[0], "arith.mulf").operands:
        side = made(operand, "arith.extf", "tensor.extract")
        side = side if side.name == "tensor.extract" else made(side.operands[0], "tensor.extract")
        need(list(side.operands)[1:] == list(body(op).arguments))
        sides.append(side.operands[0])
    others = [side for side in sides if side != output.operands[0]]
    need(len(others) == 1)
    return input_of(others[0]), rows[0]


def _states(
    inner: list[ir.Operation], state: ir.Value, following: ir.Value
) -> tuple[ir.Operation | None, ir.Operation | None]:  # fmt: skip
    """The store of a state at a boundary, and the branch it is in."""
    branches = [op for op in inner if op.name == "scf.if"]
    need(len(branches) <= 1 and all(not list(op.results) and len(op.regions[1].blocks) == 0 for op in branches))
    stores = [op for op in (operations(body(branches[0])) if branches else inner) if op.name == "tile.store"]
    stores = [op for op in stores if op.operands[0] in (state, following)]
    need(len(stores) == 1 if branches else len(stores) <= 1)
    return (stores[0] if stores else None), (branches[0] if branches else None)


def _initial(value: ir.Value) -> ir.Operation | None:
    """The load of the initial state; None for zeros."""
    op = made(value, "tile.fill", "tile.load")
    if op.name == "tile.load":
        return op
    need(constant(op.operands[0]) == 0.0)
    return None
