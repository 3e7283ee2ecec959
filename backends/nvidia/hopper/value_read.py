"""Recognises sweeps over chunks whose value channels have decays of their own: kernels of grid "chunks" with a `tile.decay_values`."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, maker, operations, yielded
from attn_mlir.backends.nvidia.hopper.channel_read import KEYS, reads_of
from attn_mlir.backends.nvidia.hopper.sweep_forms import Input, OtherKernelError, input_of, is_copy, made, need, sources, view_of
from attn_mlir.backends.nvidia.hopper.sweep_frame import VALUES, Frame, final_of, initial_of, is_packed, loop_of, need_all, states_of
from attn_mlir.backends.nvidia.hopper.sweep_rows import rests
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import ir

BLOCK = 16
"""Positions of a chunk: so many are a step along K of matrix instructions."""


@dataclass(kw_only=True)
class ValueSweep(Frame):
    """One kernel. `made` is its `tile.decay_values`, `steps` the map of log decays, of tiles that `decays` loads (None: of none).

    `store` puts rows of o in memory (None: they are of no use), `products` those of `factor` times what other positions give.
    """

    made: ir.Operation
    q: Input
    factor: Input
    steps: ir.Operation
    decays: ir.Operation | None
    store: ir.Operation | None
    products: ir.Operation

    @property
    def reverse(self) -> bool:
        """Whether the sweep goes from the last chunk to the first."""
        return flag(self.made, "reverse")

    @property
    def inputs(self) -> dict[str, Input]:
        """The tiles of 16 bits that a chunk loads, by name."""
        return {"q": self.q, "k": self.k, "v": self.v, "factor": self.factor}

    @property
    def outputs(self) -> dict[str, ir.Operation]:
        """The stores of a chunk, by name."""
        return {"products": self.products, **({} if self.store is None else {"rows": self.store})}

    @property
    def lifted(self) -> bool:
        """Whether what rounding leaves out is multiplied apart, kept larger than it is."""
        return self.element == "f16"


def read_values(kernel: ir.Operation) -> ValueSweep | None:
    """The sweep that a kernel is; None for a kernel of another form."""
    try:
        return _read(kernel)
    except OtherKernelError:
        return None


def _read(kernel: ir.Operation) -> ValueSweep:
    loop = loop_of(kernel)
    inner, (_, state) = operations(body(loop)), body(loop).arguments
    found = [op for op in inner if op.name == "tile.decay_values"]
    need(len(found) == 1)
    scores, outside, v, decays, count = found[0].operands
    others, rows, entering, carry = found[0].results
    pairs, added = made(scores, "tile.dot"), made(outside, "tile.dot_add")
    first, (q, k) = made(added.operands[0], "tile.dot"), list(pairs.operands)
    held = made(first.operands[1], "tile.map")
    need(flag(pairs, "transpose_b") and flag(first, "transpose_b") and first.operands[0] == q and is_copy(held, state))
    last = made(yielded(body(loop))[0], "tile.dot_add")
    following = made(last.operands[0], "tile.dot_rescale")
    whole = made(following.operands[2], "tile.map")
    need(is_copy(whole, entering) and [following.operands[n] for n in (0, 1, 3)] == [state, carry, k])
    need(flag(following, "transpose_a") and not flag(following, "transpose_b"))
    left_out = rests((first, added, 1), (following, last, 0))
    stores = {op.operands[0]: op for op in inner if op.name == "tile.store" and op.operands[0] not in (state, last.results[0])}
    store = stores.pop(rows, None)
    need(len(stores) == 1)
    (products,) = stores.values()
    factor, product = _factor(products.operands[0], others)
    steps = made(decays, "tile.map")
    loaded = sources(steps, 2)
    need(len(loaded) <= 1 and all(list(read.operands)[1:] == list(body(steps).arguments) for read in reads_of(steps)))
    states, branch = states_of(inner, state, last.results[0])
    sweep = ValueSweep(
        kernel=kernel, loop=loop, state=state, following=last.results[0], initial=initial_of(loop), k=input_of(k), v=input_of(v),
        packed=is_packed(kernel), transposed=True, states=states, branch=branch, final=final_of(operations(body(kernel)), loop),
        made=found[0], q=input_of(q), factor=input_of(factor), steps=steps,
        decays=made(loaded[0], "tile.load") if loaded else None, store=store, products=products,
    )  # fmt: skip
    used = [found[0], pairs, first, added, held, following, last, whole, *left_out, product, *sweep.outputs.values(), steps]
    used += [branch if branch is not None else states, sweep.decays, *(each.load for each in sweep.inputs.values())]
    _check(sweep, inner, [op for op in used if op is not None])
    need(sweep.count == count and len(left_out) == 2)
    return sweep


def _factor(products: ir.Value, others: ir.Value) -> tuple[ir.Value, ir.Operation]:
    """The tile that others are multiplied by, element by element, and the map that does."""
    op = made(products, "tile.map")
    need(len(yielded(body(op))) == 1)
    sides: list[ir.Value] = []
    for operand in made(yielded(body(op))[0], "arith.mulf").operands:
        widening = maker(operand)
        side = made(widening.operands[0] if widening is not None and widening.name == "arith.extf" else operand, "tensor.extract")
        need(list(side.operands)[1:] == list(body(op).arguments))
        sides.append(side.operands[0])
    need(others in sides)
    return sides[1 - sides.index(others)], op


def _check(sweep: ValueSweep, inner: list[ir.Operation], used: list[ir.Operation]) -> None:
    """Sizes and types are those of the generated code, and no op of the loop is left over."""
    loads, stores = [each.load for each in sweep.inputs.values()], list(sweep.outputs.values())
    tiles = [ir.RankedTensorType(load.results[0].type) for load in loads]
    need(len({str(type_.element_type) for type_ in tiles}) == 1 and sweep.element in ("f16", "bf16"))
    written = {name: str(ir.MemRefType(store.operands[1].type).element_type) for name, store in sweep.outputs.items()}
    need(written["products"] == "f32" and written.get("rows", sweep.element) == sweep.element)
    need(all(type_.shape[0] == BLOCK for type_ in tiles) and sweep.keys in KEYS and sweep.values in VALUES)
    need(all(not each.factors and each.mod is None for each in sweep.inputs.values()))
    if sweep.decays is not None:
        need(str(ir.RankedTensorType(sweep.decays.results[0].type).element_type) in ("f32", "f16", "bf16"))
        loads.append(sweep.decays)
    need(all(list(load.operands)[3:5] == [sweep.begin, sweep.count] for load in loads))
    need(all(list(store.operands)[4:6] == [sweep.begin, sweep.count] for store in stores))
    stored = [*stores, *(op for op in (sweep.states, sweep.final) if op is not None)]
    for memory in [*(op.operands[1] for op in stored), *([] if sweep.initial is None else [sweep.initial.operands[0]])]:
        view_of(memory)
    need_all(inner, used)
