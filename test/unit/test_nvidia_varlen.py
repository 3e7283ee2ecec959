"""attention_varlen on an NVIDIA GPU against float64 sequence by sequence: forward, gradients, rows of no sequence, CUDA graphs; everywhere:
who makes its kernels, and lists of work hold every block once.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import attention_varlen, driver, masks, rows
from attn_mlir.backends.gpu.packed import Ragged, SemaphoreBlocks, items_of
from attn_mlir.backends.gpu.packing import value_of
from attn_mlir.backends.gpu.program import BY_PARTS, PartsForm
from attn_mlir.backends.gpu.slices import joined
from attn_mlir.backends.nvidia.tuning.choices import EVERY, with_choices
from attn_mlir.backends.program import ResultShapes
from attn_mlir.backends.work import rows_of
from attn_mlir.errors import ArgumentError, CompileError
from attn_mlir.runtime import programs
from generated_code import complaints
from gpu_cases import DTYPES, GPU, layer_norm
from nvidia_fakes import BINARY, fake_gpu, moving_maps, set_apart
from program_texts import text_of
from varlen_cases import CASES, offsets

LENGTHS = ((17, 0, 300, 1, 127, 640, 0), (17, 3, 300, 1, 2, 640, 5))
LONG = ((1000, 0, 1, 127, 17, 1000), (1000, 17, 1, 0, 1000, 127))
Tensor = torch.Tensor


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("lengths", [[40, 1, 0, 7, 128], [0, 0], [3], [64] * 9])
def test_lists_hold_every_block_once(lengths: Sequence[int], first: bool) -> None:
    own, block = torch.tensor(lengths, dtype=torch.int32), 16
    others = own.flip(0).contiguous()
    made = items_of(own, others, block, int(own.sum()) + 5, first)
    count = int(made[-1, 0])
    wanted = rows_of(own.numpy(), block, others.numpy())
    assert count == len(wanted) <= len(made) - 1 and made.dtype == torch.int32
    if not first:
        assert torch.equal(made[:count], wanted)
    assert {tuple(row) for row in made[:count].tolist()} == {tuple(row) for row in wanted.tolist()}
    assert (made[count:-1, 1] == made[count:-1, 2]).all() and (made[:-1, 0] < len(own)).all()


def test_a_ragged_view_ends_where_a_sequence_does() -> None:
    """Row T - n + i of entry e is row e - n + i of the tensor."""
    tensor = torch.arange(7 * 2 * 8.0).view(7, 2, 8).transpose(0, 1)[None]  # [1, 2, 7, 8]
    view, rows, end, length = Ragged(tensor), 7, 5, 3
    assert view.shape == (8, 2, 7, 8)
    for i in range(length):
        steps = zip((end, 1, rows - length + i, 0), view.stride(), strict=True)
        address = view.data_ptr() + sum(index * stride for index, stride in steps) * view.element_size()
        assert address == tensor[0, 1, end - length + i].data_ptr()


@pytest.mark.parametrize("name", ["alibi", "window", "sigmoid"])
def test_who_makes_its_kernels(name: str) -> None:
    """Passes of the `warp` dialect make those of sigmoid; in a fixed order of sums the Hopper emitter makes all."""
    case = CASES[name]()
    q, k, v = case.tensors(((9, 3), (9, 3)), torch.float16, 64)
    text = text_of(lambda: case.run(q, k, v, ((9, 3), (9, 3))))
    wrt = ["q", "k", "v", *(["arg7"] if case.captures else [])]
    made = [driver.compile(text, "cuda").program, driver.compile_derivative(text, "cuda", "bwd", wrt)]
    units = {unit.code.name: unit for program in made for unit in program.units.values()}
    assert {unit.schedule["emitter"] for unit in units.values() if unit.kernel.ragged} == {"warp" if name == "sigmoid" else "hopper"}
    assert not any(complaints(unit.code) for unit in units.values())
    if name == "window":  # queries of later keys may begin nowhere
        with pytest.raises(CompileError, match=r"queries that begin and end later.*'tilelang' adds gradients of packed"):
            driver.compile_derivative(text, "cuda", "bwd", wrt, True)
        return
    ordered = driver.compile_derivative(text, "cuda", "bwd", wrt, True)
    pairs = next(unit for unit in ordered.units.values() if unit.kernel.grid == "pairs")  # type: ignore[attr-defined]
    assert pairs.schedule["emitter"] == "hopper" and "if (!(key0 + 128 >= key_rows" in pairs.code.source
    assert pairs.code.source.count("programs - 1 + min((int)gridDim.x, programs)") == 2  # thread blocks past the programs end at once
    assert not complaints(pairs.code)


def test_launches_take_views_and_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Forward and backward to the end without a GPU: descriptors of views, lists as last arguments, sums, copies of what is not aligned."""
    set_apart(monkeypatch, tmp_path)
    text, inputs = traced()
    with fake_gpu() as fake:
        monkeypatch.setattr("attn_mlir.backends.nvidia.program.compile_all", lambda codes: [BINARY] * len(codes))
        forward = driver.compile_derivative(text, "cuda", "fwd", ["q", "k", "v"])
        odd = torch.randn(12, 3 * 2 * 64 + 1).half()[:, 1:].view(12, 3, 2, 64)[:, 0].transpose(0, 1)[None]
        with warnings.catch_warnings(action="ignore"):
            forward.run([odd, *inputs[1:]], "bshd")
        assert list(forward.copies) == ["q"]
        results = forward.run(inputs, "bshd")
        assert [x.shape for x in results[:1]] == [(1, 2, 12, 64)]
        do = torch.randn(1, 2, 12, 64).half()
        backward = driver.compile_derivative(text, "cuda", "bwd", ["q", "k", "v"])
        made = backward.run([*inputs, *results, do])
        assert [x.shape for x in made] == [x.shape for x in inputs[:3]]
        maps, launches = fake.named("cuTensorMapEncodeTiled"), fake.named("cuLaunchKernelEx")
        assert len(launches) == 9  # two forward; o . do, row values, pairs; each but o . do after the list of its work
        views = [made for made in maps if made["address"] == inputs[0].data_ptr() and len(made["dims"]) == 5]
        sizes, strides = [64, 1 << 30, 2, 13, (1 << 30) + 1], [256, 128, 256, (1 << 34) - 256]
        assert views and all(made["dims"] == sizes and made["strides"] == strides for made in views)
        assert ((1 << 30) - 12 + 5) * 256 + 9 * 256 + (1 << 30) * strides[3] == (2 << 63) + 2 * 256  # row 5 of those before row 9 of 12


def test_sequences_have_semaphores_of_their_own() -> None:
    """A list for a fixed order has later keys first, and the first counter of each sequence; lengths that ask for too many get no items."""
    keys, queries = torch.tensor([40, 0, 33, 16], dtype=torch.int32), torch.tensor([70, 5, 0, 65], dtype=torch.int32)
    semaphores = SemaphoreBlocks.of(140, 64, 4)
    assert semaphores.count == 6
    made = items_of(keys, queries, 16, 100, False, semaphores)
    rows_ = made[: int(made[-1, 0])].tolist()
    assert rows_ == [[0, 32, 40, 0], [0, 16, 32, 0], [0, 0, 16, 0], [3, 0, 16, 3], [2, 32, 33, 3], [2, 16, 32, 3], [2, 0, 16, 3]]
    wrong = torch.tensor([70, 5, 1000, 65], dtype=torch.int32)
    made = items_of(keys, wrong, 16, 100, False, semaphores)
    assert {row[0] for row in made[: int(made[-1, 0])].tolist()} == {0}


def test_slices_side_by_side_are_whole() -> None:
    made = ResultShapes((torch.Size([1, 2, 3, 20]), torch.Size([1, 2, 3])), (torch.float32,) * 2, (True, False))
    o, lse = torch.randn(1, 2, 3, 20), torch.randn(1, 2, 3)
    whole = joined([[o[..., begin : begin + 8], lse] for begin in (0, 8, 12)], made)
    assert torch.equal(whole[0], o) and torch.equal(whole[1], lse)


def test_sums_in_slots_have_as_many_rows_as_their_tensor() -> None:
    """dq is added to in slots, which have a dimension more than what it is of: where rows begin is counted from the last dimension."""
    text, inputs = traced()
    made = driver.compile_derivative(text, "cuda", "bwd", ["q", "k", "v"])
    pairs = next(unit for unit in made.units.values() if unit.kernel.grid == "pairs")
    memory = [Ragged(torch.empty(2, 1, 2, 12, 64) if kind == "accumulate" else inputs[0]) for kind in pairs.kernel.outputs]
    first = pairs.kernel.ragged[-1] + 1 - len(memory)
    rows_ = [each for each in pairs.code.parameters if each.kind == "size" and each.dim == -2 and each.argument >= first]
    assert [each.argument for each in rows_] == [*range(first, first + len(memory))]
    assert [value_of(each, [None] * first + memory, 1, 0)[1] for each in rows_] == [12] * len(memory)


def test_wide_heads_are_launched_slice_by_slice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MLA's 576 columns of q and k, 520 of v: three launches, the last of which ends with v; in parts of the keys, too."""
    set_apart(monkeypatch, tmp_path)
    q, k = torch.randn(3, 4, 576).half(), torch.randn(9, 1, 576).half()
    cu_q, cu_k = offsets([1, 1, 1]), offsets([4, 3, 2])
    text = text_of(lambda: attention_varlen(q, k, k[..., :520], cu_q, cu_k, mask_mod=masks.causal("bottom_right")))
    x = [each.transpose(0, 1)[None] for each in (q, k, k[..., :520])]
    inputs = [*x, cu_q[:-1], cu_q[1:] - cu_q[:-1], cu_k[:-1], cu_k[1:] - cu_k[:-1]]
    with fake_gpu() as fake:
        monkeypatch.setattr("attn_mlir.backends.nvidia.program.compile_all", lambda codes: [BINARY] * len(codes))
        made: Any = driver.compile_derivative(text, "cuda", "", [])
        (unit,) = made.units.values()
        assert unit.schedule["emitter"] == "hopper" and unit.schedule["launch_columns"] == 176 and not complaints(unit.code)
        (o,) = made.run(inputs, "bshd")
        assert o.shape == (1, 4, 3, 520)
        values = {each["address"] for each in fake.named("cuTensorMapEncodeTiled") if each["dims"][0] == 176}
        wanted = [2 * begin for begin in (0, 176, 344)]
        assert {x[2].data_ptr() + n for n in wanted} <= values and {o.data_ptr() + n for n in wanted} <= values
        assert len(fake.named("cuLaunchKernelEx")) == 4  # one list of work
        (o,) = made.decode(inputs, "bshd", 4)
        assert o.shape == (1, 4, 3, 520) and len(fake.named("cuLaunchKernelEx")) == 4 + 6


@pytest.mark.parametrize(("dim", "values"), [(64, 64), (96, 96), (128, 128), (256, 256), (576, 512)])
def test_all_warps_that_load_copy_parts_of_pages(dim: int, values: int) -> None:
    """Each waits for a message, and asks for every fourth part; with values among the keys, too. Lanes write nothing that wgmma reads."""
    q, k, used = torch.randn(3, 16, dim).half(), torch.randn(6, 16, 1, dim).half(), torch.tensor([30, 17, 1]).int()
    text = text_of(
        lambda: attention_varlen(q, k, k[..., :values], offsets([1, 1, 1]), seqused_k=used, block_table=torch.arange(6).int().view(3, 2))
    )
    made: Any = driver.compile_derivative(text, "cuda", "", [])
    (parts, merge), (before, _) = (made.lower_parts(PartsForm(dim > 256, how)) for how in (BY_PARTS, 0))
    assert parts.schedule["gather"] == BY_PARTS and not complaints(parts.code) and not complaints(merge.code)
    source, other = (unit.code.source.split("__global__")[-1] for unit in (parts, before))
    assert "gather_rows<" not in source and source.count("fence_proxy_async") == other.count("fence_proxy_async")
    # Code of the warp that tells the others, and of those.
    assert source.count("attn::load_shared_int4(message + part * 16)") >= 2 * (1 if dim > 256 else 2) and ".z % 16 == 0) {" in source
    assert "const int part = turn + attn::warp_index() - " in source and "turn + attn::warp_index()" not in other


@pytest.mark.parametrize(("dim", "parts"), [(64, 8), (128, 8), (160, 5)])
def test_all_warps_that_load_copy_parts_of_pages_of_several_queries(dim: int, parts: int) -> None:
    """One kernel for pages of any size, with the registers of others; where parts are no multiple of the warps, some copy one less."""
    text = with_choices(text_of(lambda: several_on_pages(dim, mask_mod=masks.causal("bottom_right"))), {EVERY: {"emitter": "hopper"}})
    made: Any = driver.compile_derivative(text, "cuda", "", [])
    (unit,) = made.units.values()
    assert unit.schedule["gather"] == BY_PARTS and unit.schedule["producer_registers"] <= 40 and not complaints(unit.code)
    source = unit.code.source.split("__global__")[-1]
    assert f"turn < {parts}; turn += 4)" in source and (f"if (part >= {parts}) break;" in source) == bool(parts % 4)
    one = made.lower_parts()  # of single queries, how pages are copied follows from their size
    assert one is not None and one[0].schedule["gather"] == 0 and "turn += 4)" not in one[0].code.source


def test_one_thread_asks_for_pages_where_loops_take_no_turns() -> None:
    """Two passes load keys twice, values once; windows of a captured tensor are brought by the other warps."""
    bias = torch.randn(16, 200)
    for mods in ({"row": layer_norm}, {"score_mod": lambda s, b, h, i, j: s + bias[h, i - j + 100]}):
        made: Any = driver.compile_derivative(text_of(lambda mods=mods: several_on_pages(64, **mods)), "cuda", "", [])
        (unit,) = made.units.values()
        assert unit.schedule.get("gather", 0) == 0 and unit.schedule["emitter"] == "hopper" and not complaints(unit.code)
        assert "Asked" not in unit.code.source.split("__global__")[-1]


def several_on_pages(dim: int, **mods: Any) -> Tensor:
    """Three sequences of 30 queries together, on pages of 16."""
    q, k, used = torch.randn(30, 16, dim).half(), torch.randn(6, 16, 1, dim).half(), torch.tensor([30, 17, 1]).int()
    table = torch.arange(6).int().view(3, 2)
    return attention_varlen(q, k, k, offsets([9, 20, 1]), seqused_k=used, block_table=table, **mods)


def test_values_among_keys_are_loaded_with_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """v = k[..., :512]: single queries have one kernel of parts, whose warpgroups share scores; of functions that change v, slices."""
    set_apart(monkeypatch, tmp_path)
    q, k, cu_q, cu_k = torch.randn(3, 128, 576).half(), torch.randn(9, 1, 576).half(), offsets([1, 1, 1]), offsets([4, 3, 2])
    x = [each.transpose(0, 1)[None] for each in (q, k, k[..., :512])]
    inputs = [*x, cu_q[:-1], cu_q[1:] - cu_q[:-1], cu_k[:-1], cu_k[1:] - cu_k[:-1]]

    def launches(given: list[Tensor], most: int, **mods: Any) -> int:
        text = text_of(lambda: attention_varlen(q, k, k[..., :512], cu_q, cu_k, **mods))
        with fake_gpu() as fake:
            monkeypatch.setattr("attn_mlir.backends.nvidia.program.compile_all", lambda codes: [BINARY] * len(codes))
            made: Any = driver.compile_derivative(text, "cuda", "", [])
            (o,) = made.decode(given, "bshd", most)
            assert o.shape == (1, 128, 3, 512)
            units = made.lower_parts(PartsForm(True, 0))
            whole = made.lower_whole(PartsForm(True, 0))
            assert (units is None) == (whole is None)
            for unit in (*(units or ()), *([whole] if whole else [])):
                assert unit.schedule.get("values", "keys") == "keys" and not complaints(unit.code)
            return len(fake.named("cuLaunchKernelEx"))

    causal, of_sigmoid = (
        {"mask_mod": masks.causal("bottom_right")},
        {"score_mod": lambda s, b, h, i, j: s.tanh() + j - h, "row": rows.sigmoid},
    )
    for mods in (causal, of_sigmoid):  # one part needs no merge
        assert launches(inputs, 4, **mods) == 1 and launches(inputs, 1 << 16, **mods) == 2
    assert launches([*inputs[:2], x[2].clone(), *inputs[3:]], 4, **causal) == 4
    moving_maps(monkeypatch)
    apart = [*inputs[:2], x[1].clone()[..., :512], *inputs[3:]]  # of the same strides, elsewhere
    text, counts = text_of(lambda: attention_varlen(q, k, k[..., :512], cu_q, cu_k, score_mod=lambda s, b, h, i, j: 1.5 * s)), []
    with fake_gpu() as fake:
        made: Any = driver.compile_derivative(text, "cuda", "", [])
        for given in (inputs, apart) * 2:
            before = len(fake.named("cuLaunchKernelEx"))
            made.decode(given, "bshd", 4)
            counts.append(len(fake.named("cuLaunchKernelEx")) - before)
    assert counts == [1, 4, 1, 4]
    assert launches(inputs, 4, value_mod=lambda v, b, h, j, d: v * (1 + h)) == 4


def test_a_sequence_without_a_query_stores_nothing_where_the_next_one_is() -> None:
    """TMA leaves out no rows of a block of heads: of no query, nothing is started."""
    q, k = torch.randn(2, 4, 64).half(), torch.randn(7, 2, 64).half()
    attention_varlen(q, k, k, offsets([1, 0, 1]), offsets([3, 2, 2]))
    made: Any = driver.compile_derivative(next(reversed(programs._TABLE.values())).text, "cuda", "", [])
    whole = made.lower_whole()
    assert whole is not None and not complaints(whole.code)
    lines = whole.code.source.splitlines()
    stores = [n for n, line in enumerate(lines) if "attn::tma_store(" in line]
    assert stores and all("warpgroup * 64 < " in lines[n - 1] or "attn::tma_store(" in lines[n - 1] for n in stores)


def traced(score_mod: Any = None) -> tuple[str, list[Tensor]]:
    """A causal program, and its inputs: two sequences of 9 and 3 in [1, 2, 12, 64]."""
    q = torch.randn(12, 2, 64).half().requires_grad_()
    cu = offsets([9, 3])
    attention_varlen(q, q, q, cu, mask_mod=masks.causal(), score_mod=score_mod)
    x = q.detach().transpose(0, 1)[None]
    return next(reversed(programs._TABLE.values())).text, [x, x, x, cu[:-1], cu[1:] - cu[:-1], cu[:-1], cu[1:] - cu[:-1]]


def close(got: Tensor, wanted: Tensor, limit: float) -> None:
    """Equal but for so much of the norm."""
    assert torch.isfinite(got).all()
    assert (got.double() - wanted.double()).norm() <= limit * wanted.double().norm() + 1e-6


def run(name: str, lengths: tuple[Sequence[int], Sequence[int]], dtype: torch.dtype, dim: int) -> None:
    with torch.device("cuda"):
        torch.manual_seed(1)
        case = CASES[name]()
        q, k, v = case.tensors(lengths, dtype, dim)
        limit = 2e-3 if dtype == torch.float16 else 1.6e-2
        o, *lse = case.run(q, k, v, lengths, return_lse=True) if case.weigh is None else (case.run(q, k, v, lengths),)
        double = [x.detach().double().requires_grad_() for x in (q, k, v)]
        wanted, wanted_lse = case.reference(double[0], double[1], double[2], lengths)
        close(o, wanted, limit)
        if lse:
            empty = wanted_lse == -torch.inf
            assert torch.equal(lse[0] == -torch.inf, empty)
            close(lse[0][~empty], wanted_lse[~empty], 1e-3)
        do = torch.randn_like(o)
        captures = [x for x in case.captures if x.requires_grad]
        found = torch.autograd.grad(o, (q, k, v, *captures), do)
        expected = torch.autograd.grad(wanted, (*double, *captures), do.double())
        for got, want in zip(found, expected, strict=True):
            close(got, want, 2 * limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("tables", "dropout")])
class TestNumbers:
    pytestmark = GPU

    def test_each_sequence_is_that_of_float64(self, name: str, dtype: torch.dtype) -> None:
        run(name, LENGTHS, dtype, 64)
        if dtype == torch.float16:
            run(name, LONG, dtype, 128)


class TestOnGpu:
    pytestmark = GPU

    @pytest.mark.parametrize("name", ["dropout"])
    def test_others(self, name: str) -> None:
        with torch.device("cuda"), torch.no_grad():
            case = CASES[name]()
            q, k, v = case.tensors(LENGTHS, torch.float16, 64)
            close(case.run(q, k, v, LENGTHS), case.reference(q, k, v, LENGTHS)[0], 3e-3)

    @pytest.mark.parametrize("group", [1, 2, 4, 8, 16])
    def test_groups_and_poison(self, group: int) -> None:
        """NaN behind the last sequence, and behind the used keys of each, reaches nothing."""
        used, of_q, of_k = (100, 0, 1, 127), (100, 20, 1, 300), (130, 40, 17, 200)
        q = torch.randn(sum(of_q) + 9, 16, 64, device="cuda", dtype=torch.bfloat16)
        k, v = torch.randn(2, sum(of_k) + 9, 16 // group, 64, device="cuda", dtype=torch.bfloat16)
        q[sum(of_q) :], first, wanted = torch.nan, 0, []
        starts = [0, *torch.tensor(of_q).cumsum(0).tolist()]
        k[sum(of_k) :] = v[sum(of_k) :] = torch.nan
        for b, (length, all_keys) in enumerate(zip(used, of_k, strict=True)):
            k[first + length : first + all_keys] = v[first + length : first + all_keys] = torch.nan
            one = [
                x[None].transpose(1, 2).double()
                for x in (q[starts[b] : starts[b + 1]], k[first : first + length], v[first : first + length])
            ]
            one[1:] = [x.repeat_interleave(group, 1) for x in one[1:]]
            p = torch.softmax(one[0] @ one[1].mT / 8, -1) if length else torch.zeros(1, 16, of_q[b], 0, device="cuda", dtype=torch.double)
            wanted.append((p @ one[2])[0].transpose(0, 1))
            first += all_keys
        for x in (q, k, v):
            x.requires_grad_()
        cu = offsets(of_q).cuda(), offsets(of_k).cuda()
        o, lse = attention_varlen(q, k, v, *cu, seqused_k=torch.tensor(used, dtype=torch.int32, device="cuda"), return_lse=True)
        close(o[: sum(of_q)], torch.cat(wanted), 1e-2)
        assert (o[sum(of_q) :] == 0).all() and (lse[:, sum(of_q) :] == -torch.inf).all()
        do = torch.randn_like(o)
        do[sum(of_q) :] = torch.nan
        gradients = torch.autograd.grad(o, (q, k, v), do)
        assert all(torch.isfinite(gradient).all() for gradient in gradients) and (gradients[1][-9:] == 0).all()

    def test_many_sequences_and_one_huge(self) -> None:
        lengths = [*torch.randint(0, 6, (3000,)).tolist(), 5000]
        q = torch.randn(sum(lengths), 4, 64, device="cuda", dtype=torch.float16)
        o = attention_varlen(q, q, q, offsets(lengths).cuda(), mask_mod=masks.causal())
        s = torch.einsum("ihd,jhd->hij", q[-5000:].double(), q[-5000:].double()) / 8
        s.masked_fill_(torch.ones(5000, 5000, dtype=torch.bool, device="cuda").triu(1), -torch.inf)
        close(o[-5000:], torch.einsum("hij,jhd->ihd", torch.softmax(s, -1), q[-5000:].double()), 2e-3)
        first = next(i for i, n in enumerate(lengths) if n)
        assert torch.allclose(o[: lengths[first]][0], q[0], atol=1e-3)  # a first row sees itself alone

    @pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(8, 8, 64), (32, 8, 128), (16, 1, 128)])
    def test_decoding(self, heads: int, kv_heads: int, dim: int) -> None:
        """Single queries see their keys in parts; the numbers of parts differ by rounding only. Some have no query, or no keys."""
        queries, keys = (1, 1, 0, 1, 1), (5000, 17, 30, 0, 128)
        q = torch.randn(sum(queries) + 1, heads, dim, device="cuda", dtype=torch.float16)
        k, v = torch.randn(2, sum(keys), kv_heads, dim, device="cuda", dtype=torch.float16)
        cu = offsets(queries).cuda(), offsets(keys).cuda()
        for row in (rows.softmax, rows.sigmoid):
            wanted, first, place = torch.zeros(*q.shape, dtype=torch.double, device="cuda"), 0, 0
            for has, length in zip(queries, keys, strict=True):
                if has and length:
                    one_k, one_v = (x[first : first + length].double().repeat_interleave(heads // kv_heads, 1) for x in (k, v))
                    s = torch.einsum("hd,jhd->hj", q[place].double(), one_k) / dim**0.5
                    wanted[place] = torch.einsum("hj,jhd->hd", torch.sigmoid(s) if row is rows.sigmoid else torch.softmax(s, -1), one_v)
                first, place = first + length, place + has
            for splits in (0, 1, 7):
                o = attention_varlen(q, k, v, *cu, row=row, mask_mod=masks.causal("bottom_right"), max_q=1, max_k=5000, num_splits=splits)
                close(o, wanted, 2e-3)

    def test_graphs_take_other_lengths(self) -> None:
        """Captured once with the largest lengths, replayed with others; nothing waits, and bad offsets write nothing outside."""
        q = torch.randn(512, 4, 64, device="cuda", dtype=torch.float16)
        cu = offsets([100, 200, 212]).cuda()
        options: dict[str, Any] = {"mask_mod": masks.causal(), "max_q": 512, "max_k": 512}
        with pytest.raises(ArgumentError, match="max_q"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            attention_varlen(q, q, q, cu, mask_mod=masks.causal())
        with torch.no_grad():
            attention_varlen(q, q, q, cu, **options)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                o = attention_varlen(q, q, q, cu, **options)
            for lengths in ([100, 200, 212], [512, 0, 0], [1, 1, 300]):
                cu.copy_(offsets(lengths))
                graph.replay()
                assert torch.equal(o, attention_varlen(q, q, q, cu, mask_mod=masks.causal()))
            cu.copy_(torch.tensor([0, 5000, -7, 100000]))
            graph.replay()
            torch.cuda.synchronize()
