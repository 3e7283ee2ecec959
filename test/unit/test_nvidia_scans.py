"""Chunk scans that the emitter "scans" prints: compiled for a CPU, they give what the evaluator gives for the same kernel."""

from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import attn_mlir
from amd_tools import needs_host_clang
from attn_mlir.api import delta_rules
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.emulation import driver
from attn_mlir.passes import differentiate
from attn_mlir.passes.differentiation import delta_apart
from delta_cases import compare, inputs, narrow, run, wanted
from linear_reference import error
from scan_plans import emulate

BAR = {torch.float32: 2e-6, torch.float16: 5e-3, torch.bfloat16: 5e-3}


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """`device="cuda-emulated"` compiles such programs."""
    emulate(monkeypatch)


def errors_of(x: dict[str, Any], dtype: torch.dtype, options: dict[str, Any], own: bool = False) -> None:
    """Outputs and gradients are within the bars: all but the gradient of beta, which a kernel makes that the evaluator does not know."""
    x["beta"].requires_grad_(False)
    double, expected = wanted(x, own=own, removed=own)
    errors = compare(x, run(x, device="cuda-emulated", **options), expected, double)
    assert all(value < BAR[dtype] for value in errors.values()), errors


@needs_host_clang
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("length", "heads", "columns", "channels", "dtype"),
    [(17, 2, 64, False, torch.float32), (70, 1, 64, False, torch.bfloat16), (33, 1, 64, True, torch.float16)],
)
def test_outputs_and_gradients(length: int, heads: int, columns: int, channels: bool, dtype: torch.dtype) -> None:
    errors_of(narrow(inputs(length, heads=heads, of_k=1, dims=(columns, columns), channels=channels), dtype), dtype, {})


@needs_host_clang
@pytest.mark.usefixtures("emulated")
def test_columns_in_odd_multiples_of_32_and_numbers_of_heads() -> None:
    """Rows of 96 columns lie in shared memory without meeting; a number for each head is no number for each row."""
    x = narrow(inputs(33, heads=2, of_k=2, dims=(96, 160)), torch.bfloat16)
    factor = torch.tensor([0.5, -2.0])

    def given(tensors: dict[str, Any], **options: Any) -> Any:
        q, k, v, g, beta = (tensors[name].detach() for name in ("q", "k", "v", "g", "beta"))
        return attn_mlir.linear_attention(q, k, v, g, None, v_mod=lambda v, b, h, t: v * factor[h], erase=beta, **options)

    assert error(given(x, device="cuda-emulated"), given({name: t.double() for name, t in x.items()})) < BAR[torch.bfloat16]


@needs_host_clang
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("length", "heads", "columns", "channels"), [(520, 1, 64, False), (1000, 2, 128, False), (520, 1, 128, True)])
def test_segments(length: int, heads: int, columns: int, channels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix takes the state from one to the next; one kernel makes what scans need of chunks. Forward alone: gradients take minutes.

    Two warpgroups multiply where there are 128 columns of v.
    """
    made = emulate(monkeypatch)
    x = narrow(inputs(length, heads=heads, of_k=1, dims=(columns, columns), channels=channels), torch.bfloat16)
    with torch.no_grad():
        found = run(x, device="cuda-emulated", segment_size=512)
    _, expected = wanted(x)
    assert max(error(a, b) for a, b in zip(found, expected, strict=True)) < BAR[torch.bfloat16]
    steps = [step.kernel for step in made[-1].host.steps]
    assert len([name for name in steps if name.endswith("_chunks")]) == 1, steps
    threads = [unit.code.threads for unit in made[-1].units.values() if "warpgroups" in unit.schedule]
    assert sorted(threads) == sorted([128 + 2 * columns] * 3 + [256])  # states have programs of 64 columns


@needs_host_clang
@pytest.mark.usefixtures("emulated")
def test_another_key_is_removed() -> None:
    """The state has two writers."""
    x = narrow(inputs(40, heads=1, of_k=1, dims=(64, 64)), torch.bfloat16)
    errors_of(x, torch.bfloat16, {"erase_key": x["erase_key"] + 0.1 * x["k"], "removed_key": x["erase_key"]}, own=True)


@needs_host_clang
@pytest.mark.usefixtures("emulated")
def test_packed_sequences() -> None:
    """Their kernels are not cut in two; gradients have scans of one writer each, too."""
    x = narrow(inputs(70, heads=2, of_k=1, dims=(64, 64)), torch.bfloat16)
    double = {name: t.detach().double().requires_grad_() for name, t in x.items()}
    offsets, upstream = torch.tensor([0, 20, 70]), torch.randn(1, 2, 70, 64)
    found = []
    for tensors, device in ((x, "cuda-emulated"), (double, None)):
        q, k, v, g = (tensors[name] for name in ("q", "k", "v", "g"))
        o = attn_mlir.linear_attention(q, k, v, g, None, erase=tensors["beta"].detach(), cu_seqlens=offsets, device=device)
        found.append([o, *torch.autograd.grad(o, (q, k, v, g), upstream.to(o.dtype))])
    assert max(error(a, b) for a, b in zip(*found, strict=True)) < BAR[torch.bfloat16]


@needs_host_clang
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("channels", [False, True])
def test_gradients_start_from_kept_states(channels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 64 positions, as those of 512 are."""
    monkeypatch.setattr(delta_apart, "_SEGMENT", 64)
    monkeypatch.setattr(thresholds, "STATE_INTERVAL", 64)
    monkeypatch.setattr(differentiate, "usual_interval", lambda *given: 64)
    errors_of(narrow(inputs(130, heads=1, of_k=1, dims=(64, 64), channels=channels), torch.bfloat16), torch.bfloat16, {})


@needs_host_clang
@pytest.mark.usefixtures("emulated")
def test_a_ready_made_rule_divides_lengths_out() -> None:
    """By programs of `unit_rows`: outputs and the gradient of k, through the norm."""
    q, k, v = (torch.randn(1, 20, 1, 64).bfloat16() for _ in range(3))
    g, beta = -torch.rand(1, 20, 1), torch.rand(1, 20, 1)
    results = []
    for device, dtype in (("cuda-emulated", torch.bfloat16), (None, torch.float64)):
        key = k.to(dtype, copy=True).requires_grad_()
        options: dict[str, Any] = {"g": g.to(torch.float32), "beta": beta, "use_qk_l2norm_in_kernel": True, "device": device}
        o = attn_mlir.gated_delta_rule(q.to(dtype), key, v.to(dtype), **options)[0]
        (gradient,) = torch.autograd.grad(o, key, torch.ones_like(o))
        results.append((o.detach(), gradient))
    assert max(error(a, b) for a, b in zip(*results, strict=True)) < BAR[torch.bfloat16]


@needs_host_clang
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("rule", "offsets"), [("kda", None), ("kda", [0, 0, 5, 5, 37]), ("gated_delta_rule", None), ("gated_delta_rule", [0, 0, 5, 5, 37])]
)
def test_lengths_are_numbers_of_rows_without_gradients(rule: str, offsets: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is divided before a scan; a key of zeros stays one, and a decay of -inf forgets all. With gradients rows are divided.

    Heads of the gated delta rule share keys of other lengths than their queries have; packed sequences of it are divided, too.
    """
    channels = rule == "kda"
    q, k = (torch.randn(1, 37, 2 if channels else 1, 64).bfloat16() for _ in range(2))
    v = torch.randn(1, 37, 2, 64).bfloat16()
    k[:, 9], k[:, 20], q[:, 21] = 0, 100 * k[:, 20], 0.01 * q[:, 21]
    g, beta = -torch.rand(1, 37, 2, *[64] * channels), 2 * torch.rand(1, 37, 2)
    g[:, 12] = float("-inf")
    options: dict[str, Any] = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    if offsets is not None:
        options["cu_seqlens"] = torch.tensor(offsets, dtype=torch.int32)
    run_rule = getattr(attn_mlir, rule)
    want = run_rule(q.double(), k.double(), v.double(), g.double(), beta.double(), **options)
    divided = list[torch.Tensor]()
    plain = delta_rules.unit_rows
    monkeypatch.setattr(delta_rules, "unit_rows", lambda x, *given: divided.append(x) or plain(x, *given))
    found = run_rule(q, k, v, g, beta, device="cuda-emulated", **options)
    assert len(divided) == (0 if channels or offsets is None else 2)
    divided.clear()
    assert max(error(a, b) for a, b in zip(found, want, strict=True)) < BAR[torch.bfloat16]
    run_rule(q.requires_grad_(), k, v, g, beta, device="cuda-emulated", **options)
    assert len(divided) == 2


@needs_host_clang
@pytest.mark.usefixtures("emulated")
def test_what_the_forward_pass_keeps() -> None:
    """Gradients come twice from the same tensors, after o was changed, and in a checkpoint; nothing of it is kept without gradients."""
    q, k, v = (torch.randn(1, 40, 1, 64).bfloat16().requires_grad_() for _ in range(3))
    g, beta, upstream = -torch.rand(1, 40, 1), torch.rand(1, 40, 1), torch.randn(1, 40, 1, 64).bfloat16()

    def rule(*tensors: torch.Tensor) -> torch.Tensor:
        return attn_mlir.gated_delta_rule(*tensors, g=g, beta=beta, device="cuda-emulated")[0]

    o = rule(q, k, v)
    assert o.grad_fn is not None
    kept = [x for x in o.grad_fn.saved_tensors if x.shape == (1, 1, 40, 64) or x.shape == (1, 1, 64, 64)]  # pyright: ignore
    assert len(kept) == 2
    first = torch.autograd.grad(o, (q, k, v), upstream, retain_graph=True)
    with torch.no_grad():
        alone = rule(q, k, v)
        assert error(o, alone) < BAR[torch.bfloat16]
        o.zero_()
    again = torch.utils.checkpoint.checkpoint(rule, q, k, v, use_reentrant=False)
    for made in (o, again):
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(made, (q, k, v), upstream), first, strict=True))


@needs_host_clang
@pytest.mark.usefixtures("emulated")
def test_threads_copy_tiles_where_there_are_few_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere TMA does; both give the same bits."""
    x = narrow(inputs(70, heads=1, of_k=1, dims=(64, 64)), torch.bfloat16)
    found = []
    with torch.no_grad():
        found.append(run(x, device="cuda-emulated")[0])
        monkeypatch.setattr(thresholds, "COPIED_STAGES", 9)
        monkeypatch.setattr(driver, "_PROGRAMS", {})
        monkeypatch.setattr(driver, "_KERNELS", {})
        found.append(run(x, device="cuda-emulated")[0])
    assert torch.equal(*found)
