"""Linear attention in segments that are scanned at the same time: the same values and gradients, and when it is done."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.segments import UNIT, DeviceModel, choose_segment
from attn_mlir.errors import ArgumentError

GPU = DeviceModel(132)
LENGTH = 1100
"""Two whole segments and a part of one."""


def scan(blocks: int = 1, chunk: int = 64, sequences: int = -1, outputs: int = 1) -> dict[str, KernelGrid]:
    return {f"scan{outputs}": KernelGrid("scan", chunk, "chunks", 2, ("store",) * outputs, ((),), False, blocks, sequences)}


def backward() -> dict[str, KernelGrid]:
    """Scans for dq and dk, with products and states, and for dv."""
    (products,) = scan(outputs=3).values()
    return {"dq": products, "dk": products, **scan()}


def test_few_heads_and_long_sequences_are_cut() -> None:
    assert choose_segment(scan(), 1, 4, 65536, GPU) == 2048
    assert choose_segment(scan(blocks=4), 1, 4, 65536, GPU) == 8192
    assert choose_segment(scan(), 1, 4, 16384, GPU) == 512
    assert choose_segment(scan(chunk=32), 1, 1, 8192, DeviceModel(2, 0.45, 4.0, 0.0, 0.2, 2.8)) == 4096


@pytest.mark.parametrize(
    ("heads", "length", "forward", "both"),
    [(32, 4096, 1024, 1024), (32, 16384, 4096, 4096), (48, 8192, 0, 1024), (64, 4096, 0, 2048), (64, 65536, 0, 32768)],
)
def test_a_backward_is_cut_where_a_forward_is_not(heads: int, length: int, forward: int, both: int) -> None:
    """Its scans take longer, and two of them share the states that segments begin with. What was fastest on an H200."""
    assert choose_segment(scan(), 1, heads, length, GPU) == forward
    assert choose_segment(backward(), 1, heads, length, GPU) == both


@pytest.mark.parametrize(
    ("batch", "heads", "length", "size"), [(1, 8, 4096, 1024), (1, 16, 8192, 4096), (2, 16, 16384, 0), (1, 32, 16384, 0)]
)
def test_programs_that_share_rows_crowd_less(batch: int, heads: int, length: int, size: int) -> None:
    """K = 256, V = 512: four programs a head. What was fastest on an H200."""
    assert choose_segment(scan(blocks=4), batch, heads, length, GPU) == size


@pytest.mark.parametrize(
    ("kernels", "batch", "heads", "length", "machine"),
    [
        (scan(), 8, 32, 65536, GPU),  # enough programs
        (scan(), 1, 1, 1023, GPU),  # too short
        (scan(), 1, 1, 65536, DeviceModel(1)),  # nothing runs at the same time
        (scan(sequences=3), 1, 1, 65536, GPU),  # sequences by cu_seqlens
        ({}, 1, 1, 65536, GPU),  # no scan
    ],
)
def test_others_stay_whole(kernels: dict[str, KernelGrid], batch: int, heads: int, length: int, machine: DeviceModel) -> None:
    assert choose_segment(kernels, batch, heads, length, machine) == 0


def test_lengths_ask_for_few_programs() -> None:
    chosen = {choose_segment(scan(), 1, 4, length, GPU) for length in range(1024, 200000, 331)}
    assert len(chosen) <= 6 and all(size % UNIT == 0 and size & (size - 1) == 0 for size in chosen)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def no_decay(**options: Any) -> Any:
    q, k, v = torch.randn(1, 1, LENGTH, 16), torch.randn(1, 2, LENGTH, 16), torch.randn(1, 2, LENGTH, 8)
    return attn_mlir.linear_attention(q, k, v, scale=0.1, **options), []


def of_steps(**options: Any) -> Any:
    q, k, v, state = torch.randn(2, 1, LENGTH, 16), torch.randn(2, 1, LENGTH, 16), torch.randn(2, 2, LENGTH, 8), torch.randn(2, 2, 16, 8)
    g = torch.nn.functional.logsigmoid(torch.randn(2, 2, LENGTH) + 4)
    inputs = [x.requires_grad_() for x in (q, k, v, g, state)]
    return attn_mlir.linear_attention(q, k, v, g, initial_state=state, output_final_state=True, **options), inputs


def of_channels(**options: Any) -> Any:
    q, k, v, state = torch.randn(1, 2, LENGTH, 16), torch.randn(1, 2, LENGTH, 16), torch.randn(1, 2, LENGTH, 8), torch.randn(1, 2, 16, 8)
    g = torch.nn.functional.logsigmoid(torch.randn(1, 2, LENGTH, 16) + 4)
    inputs = [x.requires_grad_() for x in (q, k, v, g, state)]
    return attn_mlir.linear_attention(q, k, v, g, initial_state=state, output_final_state=True, **options), inputs


def of_heads(**options: Any) -> Any:
    """Mods of everything, the decay from captured tensors."""
    q, k, v, rate, gate = (
        torch.randn(1, 2, LENGTH, 16),
        torch.randn(1, 1, LENGTH, 16),
        torch.randn(1, 2, LENGTH, 8),
        torch.randn(2),
        torch.randn(1, 2, LENGTH),
    )
    made = attn_mlir.linear_attention(
        q, k, v, rate.sigmoid().log() * 0.01, q_mod=lambda x: x * 0.3, k_mod=lambda x: x.relu(),
        v_mod=lambda x, b, h, t: x * gate[b, h, t], layout="bhsd", **options,
    )  # fmt: skip
    return made, []


def results(program: Callable[..., Any], **options: Any) -> list[torch.Tensor]:
    """Values and gradients."""
    torch.manual_seed(0)
    made, inputs = program(**options)
    values = list(made) if isinstance(made, tuple) else [made]
    if not inputs:
        return values
    grads = [torch.randn(*value.shape) for value in values]
    return [value.detach() for value in values] + list(torch.autograd.grad(values, inputs, grads))


@pytest.mark.parametrize("program", [no_decay, of_steps, of_channels, of_heads])
def test_segments_change_no_result(program: Callable[..., Any]) -> None:
    whole, cut = results(program, segment_size=0), results(program, segment_size=512)
    assert any(not torch.equal(a, b) for a, b in zip(whole, cut, strict=True))  # it was another program
    for a, b in zip(whole, cut, strict=True):
        assert ((a - b).square().mean() / a.square().mean()).sqrt() < 1e-6


def test_segments_follow_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(1, 1, 8192, 16) for _ in range(3))
    whole = attn_mlir.linear_attention(q, k, v, segment_size=0)
    for threads, same in ((1, True), (4, False)):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert torch.equal(attn_mlir.linear_attention(q, k, v), whole) is same
    monkeypatch.undo()
    assert torch.equal(attn_mlir.linear_attention(q[:, :, :500], k[:, :, :500], v[:, :, :500], segment_size=512), whole[:, :, :500])


def test_compiled_graphs_have_segments() -> None:
    q, k, v = (torch.randn(1, 1, LENGTH, 16) for _ in range(3))

    def run(segment: int) -> torch.Tensor:
        return attn_mlir.linear_attention(q, k, v, segment_size=segment)

    made = torch.compile(run, fullgraph=True, backend="eager")(512)
    assert torch.equal(made, run(512)) and not torch.equal(made, run(0))


def test_engines_and_recurrences_take_segments() -> None:
    q, k, v = (torch.randn(1, LENGTH, 2, 16) for _ in range(3))
    whole, cut = (attn_mlir.retention_linear(q, k, v, segment_size=size)[0] for size in (0, 512))
    assert not torch.equal(whole, cut) and torch.allclose(whole, cut, atol=1e-5)
    meta = [attn_mlir.meta_tensor(1, 2, LENGTH, 16, dtype=torch.float32) for _ in range(3)]
    engines = [attn_mlir.LinearAttentionEngine(meta, segment_size=size) for size in (0, 512)]
    g = torch.full((1, 2, LENGTH), -0.01)
    whole, cut = (engine(*(x.transpose(1, 2) for x in (q, k, v)), g) for engine in engines)
    assert not torch.equal(whole, cut) and torch.allclose(whole, cut, atol=1e-4)


def test_stages_show_the_segments_that_were_asked_for() -> None:
    assert "attn-split-sequences" not in attn_mlir.LinearAttention().stages()
    assert '"attn.state_scan"' in attn_mlir.LinearAttention(segment_size=1024).ir("attn-split-sequences")


@pytest.mark.parametrize("size", [100, -512, 512.0, True, "auto"])
def test_other_sizes_are_refused(size: Any) -> None:
    q, k, v = (torch.randn(1, 1, 64, 16) for _ in range(3))
    with pytest.raises(ArgumentError, match="segment_size is a multiple of 512 positions, 0 for whole sequences or None, got"):
        attn_mlir.linear_attention(q, k, v, segment_size=size)


def test_sequences_of_their_own_are_not_cut() -> None:
    q, k, v = (torch.randn(1, 1, LENGTH, 16) for _ in range(3))
    offsets = torch.tensor([0, 600, LENGTH])
    whole, asked = (attn_mlir.linear_attention(q, k, v, cu_seqlens=offsets, segment_size=size) for size in (0, 512))
    assert torch.equal(whole, asked)


def test_extreme_decays_give_no_nan() -> None:
    q, k, v = (torch.randn(1, 1, LENGTH, 16) for _ in range(3))
    draw = torch.rand(1, 1, LENGTH)
    g = torch.where(draw < 0.01, -torch.inf, torch.where(draw < 0.02, -1e38, -0.01 * draw))
    whole, cut = (attn_mlir.linear_attention(q, k, v, g, output_final_state=True, segment_size=size) for size in (0, 512))
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(a, b)
