"""What drivers do beside kernels whose scores go through memory: chunks of pairs, and the keys that they see."""

from typing import Any

import pytest
import torch

from attn_mlir import Attention, masks
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.pair_chunks import PairSizes, chunks, range_of
from attn_mlir.backends.gpu.pair_products import PAIRS, STEP, PairsInMemory, read, write
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.dialects import load_all, loaded
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry

WINDOW = 7
MASKS: dict[str, Any] = {
    "causal": masks.causal(),
    "bottom right": masks.causal("bottom_right"),
    "window": masks.sliding_window(WINDOW),
    "both sides": lambda b, h, i, j: (i - j <= 9) & (j - i <= 4),
    "prefix": lambda b, h, i, j: (i >= j) | (j < 9),
    "blocks": lambda b, h, i, j: i // 8 == j // 8,
    "far": lambda b, h, i, j: j >= i + 30,
    "nothing": lambda b, h, i, j: (i < 0) & (j < 0),
}


def described(mask: Any) -> PairsInMemory:
    """What the driver is told of the backward pass under a mask, of heads of 320 columns."""
    call = Attention(mask_mod=mask)
    call.__dict__.update(_last=Inputs("bf16", 320, 64), _form=None)
    name, prepare = prepare_derivative("bwd", ("q", "k", "v"), "attn-simplify,attn-outline{gradients-apart=true}")
    with loaded() as context:
        load_all(context)
        module = ir.Module.parse(call.ir())
        Pipeline.parse(prepare, registry()).run(module)
        for function in find_all(module.operation, "func.func"):
            if not find_all(function, "attn.pairs"):
                function.erase()
        Pipeline.parse("gpu-materialize-pairs", registry()).run(module)
        (kernel,) = find_all(module.operation, "func.func")
        assert name.endswith("bwd")
        return read(str(attributes.read(kernel, attributes.CHOICES)[PAIRS]))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("queries", "keys"), [(50, 61), (61, 50), (1, 17), (127, 127)])
def test_ranges_hold_all_keys_that_are_seen(name: str, queries: int, keys: int) -> None:
    told = described(MASKS[name])
    sizes = PairSizes(2, 4, queries, 2, keys)
    seen = masks_of(MASKS[name], queries, keys)
    given: dict[int, Any] = {step.args[0]: WINDOW for step in (told.keys.steps if told.keys else ()) if step.op == "operand"}
    assert told.keys is not None and bool(given) == (name == "window")
    for begin, end in ((0, queries), (0, 1), (queries // 2, queries), (queries // 3, queries // 3 + 1)):
        first, last = range_of(told.keys, given, sizes, begin, end)
        outside = seen[begin:end].clone()
        outside[:, max(first, 0) : max(last, 0)] = False
        assert not outside.any()
        if name == "causal" and end < keys:
            assert last == end  # and no more than these


def masks_of(mask: Any, queries: int, keys: int) -> torch.Tensor:
    """Whether queries see keys, by the function on tensors."""
    if mask is MASKS["bottom right"]:
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    return mask(0, 0, i, j)


def test_masks_of_elements_see_all_keys() -> None:
    ids = torch.randint(5, (300,))
    assert described(lambda b, h, i, j: ids[i] == ids[j]).keys is None
    assert described(lambda b, h, i, j: i - j <= 4 * h).keys is None
    assert described(None).keys is None


@pytest.mark.parametrize(
    "sizes", [PairSizes(2, 4, 50, 2, 61), PairSizes(1, 16, 300, 1, 1000), PairSizes(3, 6, 1, 6, 17), PairSizes(5, 8, 127, 8, 8)]
)
@pytest.mark.parametrize("most", [1, 700, 5000, 1 << 25])
@pytest.mark.parametrize("causal", [False, True])
def test_chunks_hold_each_pair_once(sizes: PairSizes, most: int, causal: bool) -> None:
    group = sizes.heads // sizes.key_heads
    counts = torch.zeros(sizes.batches, sizes.key_heads, sizes.queries, -(-sizes.keys // STEP) * STEP, dtype=torch.int)
    ranged = (lambda begin, end: (0, end)) if causal else None
    for chunk in chunks(sizes, ranged, most):
        assert chunk.j % STEP == 0 and chunk.columns % STEP == 0
        pairs = chunk.batches * chunk.heads * group * chunk.rows * min(chunk.columns, sizes.keys)
        assert pairs <= most or chunk.batches == chunk.heads == chunk.rows == 1
        counts[
            chunk.b : chunk.b + chunk.batches,
            chunk.h : chunk.h + chunk.heads,
            chunk.i : chunk.i + chunk.rows,
            chunk.j : chunk.j + chunk.columns,
        ] += 1
    assert int(counts.max()) == 1
    seen = torch.ones(sizes.queries, sizes.keys, dtype=torch.bool)
    assert (
        counts[:, :, seen.tril() if causal else seen].all()
        if sizes.keys == counts.shape[3]
        else counts[..., : sizes.keys][..., seen.tril() if causal else seen].all()
    )


def test_groups_that_no_kernel_counts() -> None:
    with pytest.raises(UnsupportedError, match="take up to 32767 heads of queries for one of keys, got 40000"):
        next(chunks(PairSizes(1, 40000, 1, 1, 1)))


def test_text() -> None:
    told = described(masks.causal())
    assert read(write(told)) == told and told.weights == 2 and told.outputs == 2 and told.products == ((0, 1), (3, 2))
