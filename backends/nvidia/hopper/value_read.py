"""Recognises chunk scans whose value channels have decays of their own: kernels of grid "chunks" with a `tile.decay_values`."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.backends.nvidia.hopper.prepared_read import PreparedScan, steps_of
from attn_mlir.backends.nvidia.hopper.scan_common import final_of, initial_of, is_packed, loop_of, states_of
from attn_mlir.backends.nvidia.hopper.scan_patterns import InputTile, factor_of, input_of, is_copy, known, made, need
from attn_mlir.backends.nvidia.hopper.scan_rows import residuals
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import ir

BLOCK = 16
"""Positions of a chunk: so many are a step along K of matrix instructions."""


@dataclass(kw_only=True)
class ValueScan(PreparedScan):
    """One kernel. `made` is its `tile.decay_values`; `products` stores those of `factor` times what other positions give, and
    `strict` o is that itself.
    """

    strict: bool
    factor: InputTile
    products: ir.Operation

    @property
    def inputs(self) -> dict[str, InputTile]:
        return {**super().inputs, "factor": self.factor}

    @property
    def outputs(self) -> dict[str, ir.Operation]:
        return {"products": self.products, **super().outputs}

    @property
    def wide(self) -> bool:
        return True

    @property
    def scaled(self) -> bool:
        """Whether residuals are multiplied apart, scaled by 2^11."""
        return self.element == "f16"


def read_values(kernel: ir.Operation) -> ValueScan | None:
    """The scan that a kernel is; None for a kernel of another form."""
    return known(values_of, kernel)


def values_of(kernel: ir.Operation) -> ValueScan:
    """The scan that a kernel is. Raises OtherKernelError for a kernel of another form."""
    loop = loop_of(kernel)
    inner, (_, state) = operations(body(loop)), body(loop).arguments
    found = [op for op in inner if op.name == "tile.decay_values"]
    need(len(found) == 1)
    scores, outside, v, decays, count = found[0].operands
    others, rows, entering, chunk_decay = found[0].results
    pairs, added = made(scores, "tile.dot"), made(outside, "tile.dot_add")
    first, (q, k) = made(added.operands[0], "tile.dot"), list(pairs.operands)
    held = made(first.operands[1], "tile.map")
    need(flag(pairs, "transpose_b") and flag(first, "transpose_b") and first.operands[0] == q and is_copy(held, state))
    last = made(yielded(body(loop))[0], "tile.dot_add")
    following = made(last.operands[0], "tile.dot_rescale")
    whole = made(following.operands[2], "tile.map")
    need(is_copy(whole, entering) and [following.operands[n] for n in (0, 1, 3)] == [state, chunk_decay, k])
    need(flag(following, "transpose_a") and not flag(following, "transpose_b"))
    left_out = residuals((first, added, 1), (following, last, 0))
    stores = {op.operands[0]: op for op in inner if op.name == "tile.store" and op.operands[0] not in (state, last.results[0])}
    strict = rows not in stores and others in stores
    store = stores.pop(others if strict else rows, None)
    need(len(stores) == 1)
    (products,) = stores.values()
    product = made(products.operands[0], "tile.map")
    factor = factor_of(product, others)
    steps, loaded = steps_of(decays)
    states, branch = states_of(inner, state, last.results[0])
    scan = ValueScan(
        kernel=kernel, loop=loop, state=state, following=last.results[0], initial=initial_of(loop), k=input_of(k), v=input_of(v),
        packed=is_packed(kernel), transposed=True, states=states, branch=branch, final=final_of(operations(body(kernel)), loop),
        made=found[0], strict=strict, q=input_of(q), factor=input_of(factor), steps=steps, decays=loaded, store=store, products=products,
    )  # fmt: skip
    used = [found[0], pairs, first, added, held, following, last, whole, *left_out, product, *scan.outputs.values(), steps]
    scan.check(BLOCK, inner, [*used, branch if branch is not None else states, *scan.loads])
    need(scan.count == count and len(left_out) == 2)
    need(str(ir.MemRefType(products.operands[1].type).element_type) == "f32")
    need(all(not each.factors and each.mod is None for each in scan.inputs.values()))
    return scan
