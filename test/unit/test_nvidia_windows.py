"""Windows and bands of captured tensors in kernels for Hopper: who reads them so, and numbers on a GPU against float64."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import Attention, attention, masks
from attn_mlir.backends.gpu import outputs
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.nvidia import driver, pipeline
from attn_mlir.backends.nvidia.compiled_kernels import describe
from attn_mlir.backends.program import OUTLINE, prepare_derivative
from attn_mlir.frontend.emit import Inputs
from generated_code import complaints
from gpu_cases import GPU
from machine_code import compiled
from test_nvidia_ordered_sums import in_order

B, H, D = 2, 4, 64
LENGTHS = [(1, 1), (17, 127), (127, 17), (1000, 1000)]
Score = Callable[..., Any]
KINDS: dict[str, tuple[Callable[[int, int], tuple[int, ...]], Score]] = {
    "batch and heads": (lambda sq, skv: (B, H, sq, skv), lambda t, s, b, h, q, k: s + t[b, h, q, k]),
    "heads": (lambda sq, skv: (H, sq, skv), lambda t, s, b, h, q, k: s + t[h, q, k]),
    "batch": (lambda sq, skv: (B, sq, skv), lambda t, s, b, h, q, k: s * t[b, q, k]),
    "neither": (lambda sq, skv: (sq, skv), lambda t, s, b, h, q, k: s + t[q, k]),
    "queries": (lambda sq, skv: (H, sq), lambda t, s, b, h, q, k: s * t[h, q]),
    "table": (lambda sq, skv: (H, 2 * max(sq, skv)), lambda t, s, b, h, q, k: s + t[h, q - k + t.shape[1] // 2]),
    "clamped": (lambda sq, skv: (H, 64), lambda t, s, b, h, q, k: s + t[h, torch.clamp(q - k, 0, 63)]),
    "buckets": (lambda sq, skv: (16, H), lambda t, s, b, h, q, k: s + t[torch.clamp(q - k + 508, 0, 1023) // 64, h]),
}


def plain(t: torch.Tensor) -> torch.Tensor:
    return t


def apart(t: torch.Tensor) -> torch.Tensor:
    """The same with elements that are apart, in memory that is NaN elsewhere."""
    memory = torch.full((*t.shape[:-1], 2 * t.shape[-1] + 3), float("nan"), dtype=t.dtype, device=t.device)
    memory[..., 2:-1:2] = t
    return memory[..., 2:-1:2]


def odd_rows(t: torch.Tensor) -> torch.Tensor:
    """The same with rows that begin at odd places, in memory that is NaN elsewhere."""
    memory = torch.full((*t.shape[:-1], t.shape[-1] + 5), float("nan"), dtype=t.dtype, device=t.device)
    memory[..., 3:-2] = t
    return memory[..., 3:-2]


def even_rows(t: torch.Tensor) -> torch.Tensor:
    """The same with rows that begin at multiples of 16 bytes, in memory that is NaN elsewhere."""
    memory = torch.full((*t.shape[:-1], t.shape[-1] + 16 - t.shape[-1] % 8), float("nan"), dtype=t.dtype, device=t.device)
    memory[..., : t.shape[-1]] = t
    return memory[..., : t.shape[-1]]


def repeated(t: torch.Tensor) -> torch.Tensor:
    """The first of its entries in place of all."""
    return t[:1].expand(t.shape)


def turned(t: torch.Tensor) -> torch.Tensor:
    return t.mT.contiguous().mT


def kernels(score: Score, shape: tuple[int, ...], dtype: torch.dtype, head: int) -> list[Any]:
    """The forward kernel."""
    tensor = torch.randn(shape, dtype=dtype)
    call = Attention(score_mod=lambda s, b, h, q, k: score(tensor, s, b, h, q, k))
    call.__dict__.update(_last=Inputs("f16", head, head), _form=None)
    _, units = driver._lower(call.ir(), "attention", OUTLINE, {"arch": "sm_90a"})  # pyright: ignore[reportPrivateUsage]
    return list(units.values())


@needs_host_clang
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("head", [64, 128])
def test_dense_biases_are_read_by_windows(dtype: torch.dtype, head: int) -> None:
    """And CUDA has what they use, as NVRTC knows it."""
    (unit,) = kernels(KINDS["heads"][1], (2, 8, 8), dtype, head)
    said = describe(unit, None)
    assert "windows" in said and "gathers" not in said, said
    assert not complaints(unit.code)


@pytest.mark.parametrize(("element", "head", "single"), [("bf16", 64, True), ("f16", 64, False), ("bf16", 128, False)])
def test_values_of_query_rows_beside_windows(element: str, head: int, single: bool) -> None:
    """Maxima of bf16 biases stay apart from sums: of three numbers a query there is room for one step where blocks are large.

    Sums over keys still leave through TMA. The next step's numbers wait until all have read those of the step before, in the other stage.
    """
    tensor = torch.randn(2, 8, 8).to(torch.bfloat16 if element == "bf16" else torch.float16)
    call = Attention(score_mod=lambda s, b, h, q, k: s + tensor[h, q, k])
    call.__dict__.update(_last=Inputs(element, head, head), _form=None)
    form = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_90a"))
    _, units = driver._lower(call.ir(), *form, {"arch": "sm_90a"})  # pyright: ignore[reportPrivateUsage]
    (code,) = [unit.code for name, unit in units.items() if "pairs" in name]
    assert "attn::tma_add(" in code.source and code.shared_bytes <= 232448
    waits = code.source.count("if (step) attn::barrier_wait(barriers + 88 + 8 * ((step - 1) % 2), (step - 1) / 2 & 1);")
    assert waits == (2 if single else 0)  # of whole blocks of queries, and of the last one


def test_who_reads_element_by_element_says_why() -> None:
    (unit,) = kernels(lambda t, s, b, h, q, k: s + t[h, q, k] * t[0, q, k], (2, 8, 8), torch.float32, 256)
    said = describe(unit, None)
    assert "gathers it needs" in said or "gathers their windows do not fit" in said, said
    assert "windows " not in said.replace("their windows", ""), said


def pairs_of(kind: str, element: str, head: int, masked: bool) -> GpuKernel:
    """The kernel over pairs of a backward pass with a captured tensor that requires a gradient."""
    shape, score = KINDS[kind]
    tensor = torch.randn(shape(8, 8))
    call = Attention(score_mod=lambda s, b, h, q, k: score(tensor, s, b, h, q, k), mask_mod=masks.causal() if masked else None)
    call.__dict__.update(_last=Inputs(element, head, head), _form=None)
    form = prepare_derivative("bwd", ("q", "k", "v", "arg3"), pipeline.outline("sm_90a"))
    _, units = driver._lower(call.ir(), *form, {"arch": "sm_90a"})  # pyright: ignore[reportPrivateUsage]
    (unit,) = [unit for name, unit in units.items() if name.endswith("pairs")]
    return unit


@needs_host_clang
@pytest.mark.parametrize("kind", ["table", "clamped", "buckets"])
@pytest.mark.parametrize(("head", "masked"), [(64, False), (64, True), (128, False), (128, True)])
def test_gradients_of_tables_add_diagonals(kind: str, head: int, masked: bool) -> None:
    """One addition for each diagonal of a warp, by the code generator of plain backward passes, which reads the table so, too.

    Under a causal mask as well, in all three loops. Another kernel adds the sums to the table.
    """
    unit = pairs_of(kind, "bf16", head, masked)
    assert unit.schedule["emitter"] == "hopper" and unit.schedule["windows"] == 2
    source = unit.code.source.split("__global__")[1]
    counts = [source.count(text) for text in ("attn::band_sums<", "first_place += ", "attn::add_global(first_place + ")]
    assert counts == [2 + masked] * 3
    assert "attn::add_places(" not in source and "attn::holds_for_all(" not in source  # each diagonal has a place of its own
    assert not complaints(unit.code)
    binary = compiled(unit.code)
    assert binary.spills == 0 and not binary.warnings


@needs_host_clang
@pytest.mark.parametrize(("head", "masked"), [(64, False), (64, True), (128, False), (128, True)])
def test_gradients_of_numbers_of_queries_are_summed_over_keys(head: int, masked: bool) -> None:
    """One addition for each query and warp, of elements that are added up where they are made: steps have 64 queries."""
    unit = pairs_of("queries", "f16", head, masked)
    source = unit.code.source
    assert unit.schedule["emitter"] == "hopper" and "float of_keys[16];" in source
    assert source.count("attn::add_global(&") == source.count("attn::sum_of_lanes(of_keys") > 0
    assert not complaints(unit.code)
    binary = compiled(unit.code)
    assert not binary.warnings and binary.stack <= 104


def backward(score: Score, shape: tuple[int, ...], dtype: torch.dtype, head: int, *, mask: Any = None, **choices: int | str) -> Any:
    """The kernel of the backward pass that makes the gradient of the captured tensor, too."""
    tensor = torch.randn(shape, dtype=dtype)
    call = Attention(score_mod=lambda s, b, h, q, k: score(tensor, s, b, h, q, k), mask_mod=mask)
    call.__dict__.update(_last=Inputs("f16", head, head), _form=None)
    form = prepare_derivative("bwd", ("q", "k", "v", "arg3"), pipeline.outline("sm_90a"))
    _, units = driver._lower(call.ir(), *form, {"arch": "sm_90a", **choices})  # pyright: ignore[reportPrivateUsage]
    (unit,) = [unit for name, unit in units.items() if name.endswith("pairs")]
    return unit


@needs_host_clang
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("head", [64, 128])
def test_gradients_of_dense_biases_are_added_by_tiles(dtype: torch.dtype, head: int) -> None:
    """Nothing is added element by element but what TMA cannot add; sums of few are of 16 bits where the bias is."""
    unit = backward(KINDS["heads"][1], (2, 8, 8), dtype, head)
    source = unit.code.source
    assert source.count("attn::tma_add(&out3_window") == (4 if dtype == torch.float32 else 2)
    assert source.count("if (in_turn && batch == 0) attn::tma_store(&out3_window") == source.count("attn::tma_add(&out3_window")
    assert source.count("attn::add_window<") == 2 and "attn::add_global(&out3" not in source
    for batch, made in ((1, dtype), (4, dtype), (5, torch.float32)):
        keys = torch.empty(batch, 2, 16, head, device="meta")
        assert outputs.dtype_of(unit, 3, torch.Size([2, 8, 8]), keys) == made
    assert outputs.dtype_of(unit, 3, torch.Size([2, 8, 7]), torch.empty(1, 2, 16, head, device="meta")) == torch.float32
    assert not complaints(unit.code)


HEADS = 2
STORED: dict[str, tuple[tuple[int, ...], Score, str]] = {
    "heads": ((HEADS, 8, 8), KINDS["heads"][1], "turns"),
    "batch and heads": ((2, HEADS, 8, 8), KINDS["batch and heads"][1], "alone"),
    "one entry": ((1, HEADS, 8, 8), lambda t, s, b, h, q, k: s * t[0, h, q, k], "turns"),
    "batch": ((2, 8, 8), KINDS["batch"][1], ""),
    "neither": ((8, 8), KINDS["neither"][1], ""),
    "from another row on": ((HEADS, 72, 8), lambda t, s, b, h, q, k: s + t[h, q + 64, k], ""),
    "turned": ((HEADS, 8, 8), lambda t, s, b, h, q, k: s + t[h, k, q], ""),
}


@needs_host_clang
@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize("masked", [False, True])
def test_tiles_of_gradients_are_stored(kind: str, masked: bool) -> None:
    """Where each is made once in a batch entry: no zeros before, and entries that share them take turns. Heads that share them add."""
    shape, score, way = STORED[kind]
    unit = backward(score, shape, torch.float16, 64, mask=masks.causal() if masked else None)
    body = unit.code.source.split("__global__")[1]
    assert unit.schedule.get("stored_tiles", "") == ("-1:f16" if way else "")
    assert ("attn::semaphore_reached(before" in body) == ("semaphore_parts" in unit.schedule) == (way == "turns")
    assert ("attn::clear_rows<__half>(" in body) == (bool(way) and masked)
    assert not complaints(unit.code)
    if way == "alone":
        assert "attn::tma_add(&out3_window" not in body and body.count("attn::tma_store(&out3_window") == (3 if masked else 2)


@pytest.mark.parametrize("choices", [{"order": "static"}, {"block_q": 64}], ids=str)
def test_tiles_are_added_to_zeros_where_no_turns_are_known(choices: dict[str, Any]) -> None:
    """Of programs that are not drawn, one that is waited for may not have begun; other warpgroups have not run so on a GPU."""
    unit = backward(KINDS["heads"][1], (2, 8, 8), torch.float16, 64, **choices)
    assert unit.schedule["emitter"] == "hopper" and not {"stored_tiles", "tile_warps", "turn_entries"} & unit.schedule.keys()
    assert "attn::semaphore_reached(" not in unit.code.source.split("__global__")[1]
    shapes = [(1, 2, 128, 64), (1, 2, 128, 64), (1, 2, 128, 64), (2, 128, 128)]
    assert outputs.is_cleared(unit, 3, shapes, torch.float16, shapes[0])


def test_a_tile_is_read_before_its_memory_is_given_back() -> None:
    """Warps of the producer, which consumers meet when a tile is there, send it in turn, give it back, and tell the next entry last."""
    for masked, first in ((False, "// tiles of this warpgroup"), (True, "// sums of this warpgroup")):
        unit = backward(KINDS["heads"][1], (2, 8, 8), torch.float16, 64, mask=masks.causal() if masked else None)
        role, consumers = unit.code.source.split(first)[1].split("attn::more_registers")
        step = role.split("for (int query0")[1]
        turn = [
            "attn::named_sync(10 + part + 2 * stage, 160);",
            "if (in_turn && batch) attn::semaphore_reached(before, (int)(step - begun) + 1);",
            "if (in_turn && batch == 0) attn::tma_store(&out3_window",
            "attn::tma_add(&out3_window",
            "attn::bulk_commit();",
            "attn::bulk_wait_read<0>();",
            "attn::warp_arrive(barriers + 88 + 8 * stage, lane == 0);",
            "if (lane == 0 && in_turn && batch + 1 < k_n0) {",
            "attn::bulk_wait<0>();",
            "attn::semaphore_pass(turn, (int)(step - begun) + 1);",
        ]
        assert in_order(step, turn)
        assert in_order(
            consumers,
            ["attn::store_matrices_transposed(", "attn::fence_proxy_async();", "attn::named_arrive(10 + warpgroup + 2 * stage, 160);"],
        )
        assert unit.code.source.count("atomicInc(") == 2  # all programs are drawn: an entry waits for one that runs


def test_what_is_stored_needs_no_zeros() -> None:
    """Where TMA writes the tensor, whose elements are all of pairs; else zeros come first."""

    def cleared(shape: tuple[int, ...], keys: tuple[int, int, int], queries: tuple[int, int], dtype: torch.dtype = torch.float16) -> bool:
        batch, heads, length = keys
        shapes = [(batch, heads, length, 64), (batch, *queries, 64), (batch, heads, length, 64), shape]
        return outputs.is_cleared(unit, 3, shapes, dtype, (batch, heads, length, 64))

    unit = backward(KINDS["heads"][1], (2, 8, 8), torch.float16, 64)
    assert not cleared((2, 768, 128), (3, 2, 128), (2, 768)) and not cleared((4, 768, 128), (3, 2, 128), (4, 768))
    assert cleared((2, 767, 128), (3, 2, 128), (2, 767)) and cleared((2, 4096, 128), (5, 2, 128), (2, 4096))  # entries wait too long
    assert not cleared((2, 17, 128), (1, 2, 128), (2, 17))
    assert cleared((2, 768, 127), (3, 2, 127), (2, 768))  # rows of 254 bytes
    assert cleared((2, 768, 128), (3, 2, 128), (2, 768), torch.float32)  # elements that TMA would have to convert
    assert cleared((2, 776, 128), (3, 2, 128), (2, 768)) and cleared((3, 768, 128), (3, 2, 128), (2, 768))
    unit = backward(KINDS["batch and heads"][1], (2, 2, 8, 8), torch.float16, 64)
    assert not cleared((9, 2, 17, 128), (9, 2, 128), (2, 17)) and cleared((10, 2, 17, 128), (9, 2, 128), (2, 17))
    unit = backward(KINDS["neither"][1], (8, 8), torch.float16, 64)
    assert cleared((17, 128), (1, 1, 128), (1, 17))


def test_a_gradient_takes_no_window_of_another_type() -> None:
    """Beside a bias of 16 bits that has no gradient, one of f64 has it: it is added in f32."""
    other, bias = torch.zeros(2, 8, 8, dtype=torch.float16), torch.zeros(2, 8, 8, dtype=torch.float64)
    call = Attention(score_mod=lambda s, b, h, q, k: s + other[h, q, k] + bias[h, q, k])
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=None)
    form = prepare_derivative("bwd", ("q", "k", "v", "arg4"), pipeline.outline("sm_90a"))
    _, units = driver._lower(call.ir(), *form, {"arch": "sm_90a"})  # pyright: ignore[reportPrivateUsage]
    (pairs,) = (unit for name, unit in units.items() if name.endswith("pairs"))
    assert pairs.schedule["windows"] and "narrow" not in pairs.schedule and "add_window" not in pairs.code.source.split("__global__")[1]


@pytest.mark.usefixtures("unlowered")
def test_gradients_of_dense_biases_in_a_fixed_order_are_added_one_by_one() -> None:
    unit = backward(KINDS["heads"][1], (2, 8, 8), torch.float16, 64, deterministic=1)
    assert unit.schedule["emitter"] == "tilelang" and "narrow" not in unit.schedule


def test_diagonals_are_not_added_where_an_order_is_asked_for() -> None:
    shape, score = KINDS["clamped"]
    tensor = torch.randn(shape(8, 8))
    call = Attention(score_mod=lambda s, b, h, q, k: score(tensor, s, b, h, q, k))
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=None)
    form = prepare_derivative("bwd", ("q", "k", "v", "arg3"), pipeline.outline("sm_90a", deterministic=True))
    _, units = driver._lower(call.ir(), *form, {"arch": "sm_90a", "deterministic": 1})  # pyright: ignore[reportPrivateUsage]
    assert len(units) == 3 and not any("attn::add_places(" in unit.code.source for unit in units.values())


def wanted(tensors: Sequence[torch.Tensor], captured: torch.Tensor, score: Score, mask: Any) -> torch.Tensor:
    """Softmax attention of doubles."""
    q, k, v = tensors
    sizes = (B, H, q.shape[2], k.shape[2])
    b, h, i, j = (torch.arange(n, device=q.device).view([-1 if m == place else 1 for m in range(4)]) for place, n in enumerate(sizes))
    s = score(captured, q @ k.mT * D**-0.5, b, h, i, j)
    s = s if mask is None else s.masked_fill(~mask(b, h, i, j), -torch.inf)
    return torch.softmax(s, -1).nan_to_num(0.0) @ v


class TestOnGpu:
    pytestmark = GPU

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
    @pytest.mark.parametrize("layout", [plain, apart, odd_rows, even_rows, repeated, turned])
    def test_numbers(self, kind: str, dtype: torch.dtype, layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
        shape, score = KINDS[kind]
        for sq, skv in LENGTHS:
            for mask in (None, masks.causal()) if layout is plain else (None,):
                q = torch.randn(B, H, sq, D, device="cuda", dtype=torch.float16)
                k, v = torch.randn(2, B, H, skv, D, device="cuda", dtype=torch.float16)
                captured = layout(torch.randn(shape(sq, skv), device="cuda").to(dtype))
                leaves = [x.requires_grad_() for x in (q, k, v, captured)]
                o = attention(q, k, v, score_mod=lambda s, b, h, i, j, t=captured: score(t, s, b, h, i, j), mask_mod=mask)
                exact = [x.detach().double().requires_grad_() for x in leaves]
                right = wanted(exact[:3], exact[3], score, mask)
                do = torch.randn_like(o)
                pairs = [(o, right), *zip(torch.autograd.grad(o, leaves, do), torch.autograd.grad(right, exact, do.double()), strict=True)]
                for got, true in pairs:
                    error = (got.double() - true).norm() / (true.norm() + 1e-2)
                    assert error < 5e-3, (sq, skv, mask, float(error))

    @pytest.mark.parametrize("batch", [1, 3, 6])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
    @pytest.mark.parametrize("mask", [None, masks.causal()], ids=["full", "causal"])
    def test_sums_over_batch_entries(self, batch: int, dtype: torch.dtype, mask: Any) -> None:
        """In 16 bits where few meet, else in f32; two key heads, whose queries have biases of their own. In turn: the same bits."""
        for sq, skv in ((320, 1024), (130, 1001), (1000, 520)):
            q = torch.randn(batch, H, sq, D, device="cuda", dtype=torch.float16)
            k, v = torch.randn(2, batch, H // 2, skv, D, device="cuda", dtype=torch.float16)
            bias = torch.randn(1, H, sq, skv, device="cuda").to(dtype)
            leaves = [x.requires_grad_() for x in (q, k, v, bias)]
            o = attention(q, k, v, score_mod=lambda s, b, h, i, j, t=bias: s + t[0, h, i, j], mask_mod=mask)
            exact = [x.detach().double().requires_grad_() for x in leaves]
            wide = [x.repeat_interleave(2, 1) for x in exact[1:3]]
            scores = exact[0] @ wide[0].mT * D**-0.5 + exact[3]
            hidden = (
                torch.zeros(sq, skv, dtype=torch.bool, device="cuda") if mask is None else torch.ones(sq, skv, device="cuda").triu(1) > 0
            )
            right = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ wide[1]
            do = torch.randn_like(o)
            found = torch.autograd.grad(o, leaves, do, retain_graph=True)
            assert found[3].dtype == dtype
            if batch == 1 or (batch == 3 and sq == 1000):
                assert torch.equal(torch.autograd.grad(o, leaves, do)[3], found[3])
            for got, true in zip(found, torch.autograd.grad(right, exact, do.double()), strict=True):
                assert (got.double() - true).norm() / true.norm() < 5e-3

    @pytest.mark.parametrize("head", [64, 128, 256])
    @pytest.mark.parametrize("mask", [None, masks.causal()], ids=["full", "causal"])
    def test_without_gradients(self, head: int, mask: Any) -> None:
        """Kernels that keep old maxima, and read their windows again where these are too small."""
        for sq, skv in ((17, 127), (1000, 1000), (640, 2048)):
            q = torch.randn(B, H, sq, head, device="cuda", dtype=torch.float16)
            k, v = torch.randn(2, B, H, skv, head, device="cuda", dtype=torch.float16)
            bias = torch.randn(H, sq, skv, device="cuda").half()
            bias[..., skv // 3] += 30  # later maxima are far above the first ones
            o = attention(q, k, v, score_mod=lambda s, b, h, i, j, t=bias: s + t[h, i, j], mask_mod=mask)
            s = q.double() @ k.double().mT * head**-0.5 + bias.double()
            if mask is not None:
                s = s.masked_fill(torch.ones(sq, skv, dtype=torch.bool, device="cuda").triu(1), -torch.inf)
            right = torch.softmax(s, -1) @ v.double()
            assert (o.double() - right).norm() / right.norm() < 5e-3, (sq, skv)
