"""Backward passes on Hopper whose first program for a block of queries stores its sums (dQ): when, how, and that they are right."""

import pytest
import torch

import attn_mlir
from attn_mlir import masks
from attn_mlir.backends.nvidia import driver, thresholds
from attn_mlir.frontend.emit import Inputs
from masked_gradients import check_gradients, draw
from test_nvidia_ordered_sums import in_order
from test_nvidia_pairs import kernels


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_step(element: str) -> None:
    """A warp looks whether there are sums before its own are staged; it stores or adds them, and tells of a store that is done."""
    ((schedule, code),) = kernels("causal-softmax", 128, element=element)
    assert (schedule["claims"], schedule["semaphore_rows"], schedule["semaphore_parts"]) == (1, 64, 2)
    steps = code.source.split("// sums of this warpgroup")[1].split("more_registers")[0].split("for (int query0")[1:]
    assert len(steps) == 3
    for step in steps:
        turn = [
            "int *const semaphore = semaphores + ",
            "int seen = lane == 0 ? attn::semaphore_seen(semaphore) : 2;",
            "attn::named_sync(3 + part, 160);",
            "if (seen != 2) {",
            "seen = attn::claim(semaphore);",
            "if (seen == 1) attn::semaphore_wait(semaphore, 2);",
            "attn::tma_store(",
            "attn::tma_add(",
            "attn::bulk_commit();",
            "attn::bulk_wait_read<0>();",
            "attn::barrier_arrive(",
            "if (seen == 0) {",
            "attn::bulk_wait<0>();",
            "attn::semaphore_pass(semaphore, 2);",
        ]
        # The store's own condition comes before it, too.
        assert in_order(step.replace("if (seen == 0) {", "if (first) {", 1), turn)
        assert step.count("attn::tma_store(") == step.count("attn::tma_add(") == 2


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("causal-softmax", "{deterministic = 1 : i64}"),
        ("causal-softmax", "{claims = 0 : i64}"),
        ("causal-softmax", "{reduction_warps = 0 : i64}"),
        ("derivatives/softmax", ""),  # sums leave by threads that compute, at 128 columns
        ("causal-bottom-right", ""),  # of more queries than keys the first ones see none
        ("sliding-window", ""),
    ],
)
def test_others_add_to_zeros(name: str, choices: str) -> None:
    """Where a block of queries may have no program, or turns are taken."""
    found = kernels(name, 128, choices=choices)
    assert found and all("claims" not in schedule and "attn::claim(" not in code.source.split("__global__")[1] for schedule, code in found)


@pytest.mark.parametrize("name", ["causal-softmax", "derivatives/softmax"])
@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_few_keys_of_64_columns(name: str, element: str) -> None:
    """Beside a warpgroup that makes sums, two warps of the producer store and add them; calls of more keys have another kernel."""
    ((schedule, code),) = kernels(name, element=element)
    assert (schedule["claims"], schedule["key_sums"], schedule["longer"]) == (
        1,
        "warpgroup",
        thresholds.CLAIMED_KEYS[name == "causal-softmax"],
    )
    own, rest = code.source.split("if (warpgroup == 2)")[1].split("if (warpgroup == 3)")
    adds = rest.split("attn::more_registers<200>();")[0]
    assert "attn::tma_add(" not in own and "attn::claim(" not in own
    assert all(function in adds for function in ("attn::claim(semaphore)", "attn::tma_store(", "attn::tma_add("))
    ((schedule, code),) = kernels(name, element=element, choices=f"{{length = {thresholds.CLAIMED_KEYS[True]} : i64}}")
    assert not {"claims", "longer"} & schedule.keys() and "attn::claim(semaphore)" not in code.source


def test_lengths_choose_kernels() -> None:
    """Causal passes of few keys have the Hopper emitter's kernel, which claims; others that of the `warp` dialect, at once."""
    call = attn_mlir.Attention(mask_mod=masks.causal())
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=None)
    program = driver.derivative_for_gpu(call.ir(), "bwd", ("q", "k", "v"), False, 0)
    emitters = [
        unit.schedule["emitter"]
        for keys in (1, thresholds.CLAIMED_KEYS[True] - 1, thresholds.CLAIMED_KEYS[True])
        for name, unit in program.for_keys(keys).units.items()
        if "pairs" in name
    ]
    assert emitters == ["hopper", "hopper", "warp"] and program.for_keys(1 << 20).longer() is None


@pytest.mark.gpu
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("lengths", [(1, 1), (17, 17), (127, 127), (1000, 1000), (3000, 3000), (700, 300), (300, 700)])
@pytest.mark.parametrize("columns", [64, 128])
def test_gradients(lengths: tuple[int, int], mask: str, columns: int) -> None:
    """Those of float64, whatever was in memory before; several times, as who comes first differs."""
    drawn = draw(lengths, columns)
    q, k, v = (x.requires_grad_() for x in drawn[:3])
    o = attn_mlir.attention(q, k, v, mask_mod=masks.causal() if mask == "causal" else None)
    for _ in range(5):
        before = torch.full((drawn[0].numel() * 4,), torch.nan, device="cuda")
        del before
        check_gradients(torch.autograd.grad(o, (q, k, v), drawn[3], retain_graph=True), [x.detach() for x in drawn], mask)
