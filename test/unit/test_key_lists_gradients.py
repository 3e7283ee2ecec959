"""Gradients and dropout of key lists on GPUs: blocks are pages forward, and backward kernels follow the inverse of the lists."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import attn_mlir
from amd_tools import needs_host_clang
from attn_mlir import driver, masks, rows
from attn_mlir.api import key_gradients, key_pages, key_queries
from attn_mlir.api.dropout import NONE, dropout_of
from attn_mlir.api.inputs import check_inputs
from attn_mlir.api.key_lists import check_key_lists
from attn_mlir.api.options import Options
from attn_mlir.runtime.prepared_lists import inverse_of, sorted_lists
from key_list_cases import agree, draw, inputs, listed, positions, through_autograd

AMD, CUDA = (1, 4, 2, 80, 300, 32), (2, 4, 2, 333, 1000, 128)
SEED = (1234567, 89)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What led to results: kernels that read "pages", or "lists" in the backward."""
    found: list[str] = []

    def noting(module: Any, name: str, word: str) -> None:
        function: Callable[..., Any] = getattr(module, name)

        def noted(*given: Any, **named: Any) -> Any:
            made = function(*given, **named)
            found.extend([word] if made is not None else [])
            return made

        monkeypatch.setattr(module, name, noted)

    noting(key_gradients, "forward_listed", "lists")
    noting(key_gradients, "paged_call", "pages")
    noting(key_pages, "paged_call", "pages")
    return found


def exact(qkv: Any, present: torch.Tensor, score: Any = None, kept: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse, dense and in float64; `kept` are the weights that dropout keeps, with what they are multiplied with."""
    q, k, v = qkv
    group = q.shape[1] // k.shape[1]
    s = q @ k.repeat_interleave(group, 1).mT / q.shape[3] ** 0.5
    s = (s if score is None else score(s, *positions(present))).masked_fill(~present, -torch.inf)
    weights = torch.softmax(s.masked_fill(~present.any(-1, keepdim=True), 0.0), -1) * present
    return (weights if kept is None else weights * kept) @ v.repeat_interleave(group, 1), s.logsumexp(-1)


def attended(
    device: str, sizes: Any, block: tuple[int, int], lists: int, count: int = 3, *, mask: Any = None, score: Any = None, learned: Any = (),
    layout: Any = "bhsd", p: float = 0.0, dtype: torch.dtype = torch.float16,
) -> None:  # fmt: skip
    """Compares o, lse and all gradients; `mask` and `score` are functions, `learned` tensors that these capture."""
    on, given = "cuda" if device == "cuda" else "cpu", [x.detach() for x in inputs(sizes, dtype)]
    index = draw(sizes, block, lists, count)
    index[..., 0] = torch.where(index[..., 1] > 0, index[..., 1], index[..., 0])  # some twice
    index[0, 0, 0] = -1
    qkv = [(x if layout == "bhsd" else x.transpose(1, 2).contiguous()).to(on).requires_grad_() for x in given]
    mods = {"mask_mod": mask, "score_mod": score, "layout": layout, "dropout_p": p, "dropout_seed": SEED if p else None}
    o, lse = attn_mlir.attention(*qkv, key_index=index.to(on), key_block=block, device=device, return_lse=True, **mods)
    present = listed(index, block, sizes[1], sizes[3], sizes[4])
    if mask is not None:
        present = present & (torch.arange(sizes[3])[:, None] + sizes[4] - sizes[3] >= torch.arange(sizes[4]))
    kept = attn_mlir.dropout_mask(sizes[0], sizes[1], sizes[3], sizes[4], p, SEED, device="cpu") / (1 - p) if p else None
    leaves, known = [x.double().requires_grad_() for x in given], [x.detach().cpu().double().requires_grad_() for x in learned]
    wanted, wanted_lse = exact(leaves, present, None if score is None else lambda *x: score(*x, *known), kept)
    o = o if layout == "bhsd" else o.transpose(1, 2)
    there = wanted_lse > -torch.inf
    assert not there.all() and torch.equal(lse.cpu() > -torch.inf, there)
    do, dlse = torch.randn(o.shape, dtype=dtype), torch.where(there, torch.randn(lse.shape), 0.0)
    found = torch.autograd.grad((o, lse), (*qkv, *learned), (do.to(on), dlse.to(on)))
    others = torch.autograd.grad((wanted, wanted_lse.masked_fill(~there, 0.0)), (*leaves, *known), (do.double(), dlse.double()))
    found = [x if layout == "bhsd" or number > 2 else x.transpose(1, 2) for number, x in enumerate(found)]
    agree([o.cpu(), lse.cpu()[there]], [wanted, wanted_lse[there]], 2e-3)
    agree([x.cpu() for x in found], others, 5e-3)


def cases(device: str, sizes: Any, block: tuple[int, int]) -> list[Callable[[], None]]:
    """What differs in how it reaches kernels."""
    causal, on = masks.causal("bottom_right"), "cuda" if device == "cuda" else "cpu"
    slopes = torch.rand(sizes[1], device=on).requires_grad_()

    def score(s: Any, b: Any, h: Any, i: Any, j: Any, learned: Any = slopes) -> Any:
        return s + 0.02 * learned[h] * (j - i)

    return [
        lambda: attended(device, sizes, block, sizes[1]),
        lambda: attended(device, sizes, block, sizes[2], mask=causal, score=score, learned=[slopes]),
        lambda: attended(device, sizes, block, 1, mask=causal, layout="bshd"),
        lambda: attended(device, sizes, block, sizes[2], p=0.3, mask=causal),
    ]


@needs_host_clang
@pytest.mark.parametrize("number", range(4))
def test_emulated_amd(number: int, taken: list[str]) -> None:
    cases("hip-emulated", AMD, (32, 128))[number]()
    assert taken == ["pages", "lists"]


@needs_host_clang
@pytest.mark.parametrize("number", range(3))
def test_gradients_of_queries_by_pages(number: int, taken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that read listed blocks as pages make the gradient of q, as on Hopper."""
    made: list[Any] = []
    of = key_queries.QueryGradient.of
    monkeypatch.setattr(key_queries, "MEASURED", frozenset({("hip-emulated", 32, 128)}))
    monkeypatch.setattr(key_queries.QueryGradient, "of", lambda *given: made.append(of(*given)) or made[-1])
    cases("hip-emulated", (1, 4, 2, 150, 300, 32), (64, 128))[number]()
    assert taken == ["pages", "lists"] and len(made) == 1


@needs_host_clang
@pytest.mark.parametrize(("names", "apart"), [("q", 1), ("qkv", 1), ("qk", 1), ("qv", 0)])
def test_gradients_of_some_inputs_beside_that_of_queries(names: str, apart: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a backward by the others takes fewer results of the forward pass, as here that by v alone, one makes all gradients."""
    made: list[Any] = []
    of, sizes, block = key_queries.QueryGradient.of, (1, 4, 2, 150, 300, 32), (64, 128)
    monkeypatch.setattr(key_queries, "MEASURED", frozenset({("hip-emulated", 32, 128)}))
    monkeypatch.setattr(key_queries.QueryGradient, "of", lambda *given: made.append(of(*given)) or made[-1])
    index, given = draw(sizes, block, 4, 3), [x.detach() for x in inputs(sizes, torch.float16)]
    qkv = {name: x.clone().requires_grad_(name in names) for name, x in zip("qkv", given, strict=True)}
    leaves = {name: x.double().requires_grad_(name in names) for name, x in zip("qkv", given, strict=True)}
    o = attn_mlir.attention(*qkv.values(), key_index=index, key_block=block, device="hip-emulated")
    wanted, _ = exact(tuple(leaves.values()), listed(index, block, sizes[1], sizes[3], sizes[4]))
    do = torch.randn(o.shape, dtype=torch.float16)
    found = torch.autograd.grad(o, [qkv[name] for name in names], do)
    agree(found, torch.autograd.grad(wanted, [leaves[name] for name in names], do.double()), 5e-3)
    assert len(made) == apart


@needs_host_clang
def test_heads_that_share_short_blocks_are_rows(taken: list[str]) -> None:
    attended("hip-emulated", (1, 32, 2, 20, 300, 32), (2, 128), 2, 2)
    assert taken == ["pages", "lists"]


def later(device: str, sizes: Any, block: tuple[int, int], taken: list[str]) -> None:
    """Calls of ready-made functions take a short way from the second on, with lists and tensors of their own."""
    for mask in (None, masks.causal("bottom_right"), None, masks.causal("bottom_right")):
        attended(device, sizes, block, 2, 2, mask=mask)
    assert taken == ["pages", "lists"] * 4 and key_gradients._READY


@needs_host_clang
def test_later_calls(taken: list[str]) -> None:
    later("hip-emulated", (1, 32, 2, 20, 256, 32), (2, 128), taken)


@pytest.mark.gpu
def test_later_calls_on_nvidia(taken: list[str]) -> None:
    later("cuda", (1, 32, 2, 100, 1024, 128), (1, 64), taken)


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(4))
def test_nvidia(number: int, taken: list[str]) -> None:
    cases("cuda", CUDA, (64, 64))[number]()
    assert taken == ["pages", "lists"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("sizes", "block"),
    [((1, 32, 2, 100, 1000, 128), (1, 64)), ((1, 32, 2, 100, 1000, 64), (4, 64)), ((1, 8, 2, 400, 2000, 128), (96, 64)),
     ((1, 4, 4, 333, 1000, 64), (128, 128)), ((1, 8, 2, 400, 2000, 128), (64, 512)), ((1, 4, 1, 400, 1000, 192), (64, 64))],
)  # fmt: skip
def test_blocks_on_nvidia(sizes: tuple[int, ...], block: tuple[int, int], taken: list[str]) -> None:
    attended("cuda", sizes, block, 2 if sizes[2] == 2 else 1)
    assert taken == ["pages", "lists"]


@pytest.mark.gpu
@pytest.mark.parametrize("block", [(64, 64), (128, 256), (16, 64)])
@pytest.mark.parametrize("mask", [None, masks.causal("bottom_right")], ids=["all", "causal"])
def test_fixed_order_on_nvidia(block: tuple[int, int], mask: Any, taken: list[str]) -> None:
    """Programs that list the same queries add to them in the order of their keys."""
    qkv: Any = [x.detach().cuda().requires_grad_() for x in inputs((2, 8, 2, 1333, 3000, 128), torch.float16)]
    index = draw((2, 8, 2, 1333, 3000, 0), block, 2, 7)
    listed_keys, do = {"key_index": index.cuda(), "key_block": block}, torch.randn(2, 8, 1333, 128, device="cuda").half()

    def gradients() -> Any:
        return torch.autograd.grad(attn_mlir.attention(*qkv, mask_mod=mask, deterministic=True, **listed_keys), qkv, do)

    first = gradients()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, gradients(), strict=True))
    assert taken[:2] == ["pages", "lists"]
    present = listed(index, block, 8, 1333, 3000)
    if mask is not None:
        present = present & (torch.arange(1333)[:, None] + 1667 >= torch.arange(3000))
    leaves: Any = [x.detach().cpu().double().requires_grad_() for x in qkv]
    agree([x.cpu() for x in first], torch.autograd.grad(exact(leaves, present)[0], leaves, do.cpu().double()), 5e-3)


@needs_host_clang
@pytest.mark.parametrize(("block", "names"), [((1, 64), ["pages"]), ((16, 16), ["pages"]), ((32, 64), []), ((32, 1), [])])
def test_dropout_without_gradients_and_by_a_table(block: tuple[int, int], names: list[str], taken: list[str]) -> None:
    """Blocks that no backward kernel of a device takes are a table there; single keys of several queries always are."""
    qkv = [x.detach().requires_grad_(block[0] == 32) for x in inputs(AMD, torch.float16)]
    index = draw(AMD, block, 2, 5)
    o = attn_mlir.attention(*qkv, key_index=index, key_block=block, device="hip-emulated", dropout_p=0.4, dropout_seed=SEED)
    kept = attn_mlir.dropout_mask(1, 4, 80, 300, 0.4, SEED, device="cpu") / 0.6
    agree([o.detach()], [exact([x.detach().double() for x in qkv], listed(index, block, 4, 80, 300), kept=kept)[0]], 2e-3)
    assert taken == names


@needs_host_clang
def test_second_derivatives_go_through_a_table(taken: list[str]) -> None:
    sizes = (1, 32, 2, 4, 256, 16)
    given = [x.detach() for x in inputs(sizes, torch.float16)]
    index = torch.tensor([[0, 1], [1, 1]], dtype=torch.int32).view(1, 1, 2, 2)

    def second(qkv: Any, o: torch.Tensor) -> torch.Tensor:
        (dq,) = torch.autograd.grad(o.float().square().sum(), qkv[0], create_graph=True)
        return torch.autograd.grad(dq.double().square().sum(), qkv[1])[0]

    qkv: Any = [x.clone().requires_grad_() for x in given]
    lists = index.clone()
    o = attn_mlir.attention(*qkv, key_index=lists, key_block=(2, 128), device="hip-emulated")
    lists.zero_()  # they are those of the forward pass
    found = second(qkv, o)
    assert "lists" in taken
    leaves: Any = [x.double().requires_grad_() for x in given]
    agree([found], [second(leaves, exact(leaves, listed(index, (2, 128), 32, 4, 256))[0])], 2e-2)


class SecondDerivatives:
    """Of o by q and k, of heads whose slopes a score captures."""

    def __init__(self) -> None:
        self.given = [x.detach() for x in inputs((1, 4, 2, 64, 256, 16), torch.float16)]
        self.qkv: Any = [x.clone().requires_grad_() for x in self.given]
        self.index = torch.tensor([[0, 1], [1, -1]], dtype=torch.int32).view(1, 1, 2, 2)
        self.slopes = torch.rand(4).requires_grad_()

    def attended(self, score: Any, *qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = qkv or self.qkv
        listed_keys = {"key_index": self.index.clone(), "key_block": (32, 128)}
        return attn_mlir.attention(q, k, v, score_mod=score, device="hip-emulated", **listed_keys)

    def agrees(self, o: torch.Tensor, factor: float = 1.0) -> None:
        """`factor`: of slopes in scores."""

        def second(qkv: Any, slopes: torch.Tensor, o: torch.Tensor) -> list[torch.Tensor]:
            (dq,) = torch.autograd.grad(o.float().square().sum(), qkv[0], create_graph=True)
            return list(torch.autograd.grad(dq.double().square().sum(), (qkv[1], slopes)))

        leaves: Any = [x.double().requires_grad_() for x in self.given]
        slopes = self.slopes.detach().double().requires_grad_()
        present = listed(self.index, (32, 128), 4, 64, 256)
        right = exact(leaves, present, lambda s, b, h, i, j: s + factor * 0.02 * slopes[h] * (j - i))[0]
        agree(second(self.qkv, self.slopes, o), second(leaves, slopes, right), 3e-2)


@needs_host_clang
def test_second_derivatives_are_of_what_functions_captured(taken: list[str]) -> None:
    """A closure that is rebound, or a number, after the forward pass."""
    case, step = SecondDerivatives(), 0.02
    slopes = case.slopes
    o = case.attended(lambda s, b, h, i, j: s + step * slopes[h] * (j - i))
    slopes, step = torch.rand(4) * 5, 1.0
    case.agrees(o)
    assert "lists" in taken


@needs_host_clang
def test_second_derivatives_by_one_tensor_captured_twice(taken: list[str]) -> None:
    case = SecondDerivatives()
    first = second = case.slopes
    case.agrees(case.attended(lambda s, b, h, i, j: s + 0.02 * (first[h] * (j - i) + second[h] * (j - i))), 2.0)
    assert "lists" in taken


@needs_host_clang
@pytest.mark.parametrize("through", ["hooks", "save_on_cpu", "checkpoint"])
def test_second_derivatives_of_saved_tensors_that_come_back_as_others(through: str, taken: list[str]) -> None:
    case = SecondDerivatives()
    slopes = case.slopes

    def layer(*qkv: torch.Tensor) -> torch.Tensor:
        return case.attended(lambda s, b, h, i, j: s + 0.02 * slopes[h] * (j - i), *qkv)

    case.agrees(through_autograd(through, layer, case.qkv, lambda x: x.view_as(x)))
    assert "lists" in taken


@needs_host_clang
def test_gradients_have_tangents(taken: list[str]) -> None:
    """Backward passes are linear in the gradient of o: its tangent makes theirs."""
    sizes = (1, 2, 1, 64, 256, 16)
    qkv: Any = [x.detach().requires_grad_() for x in inputs(sizes, torch.float16)]
    index = torch.tensor([[0], [1]], dtype=torch.int32).view(1, 1, 2, 1)
    o = attn_mlir.attention(*qkv, key_index=index, key_block=(32, 128), device="hip-emulated")
    assert "lists" in taken
    do, tangent = torch.randn(2, *o.shape).half()
    wanted = torch.autograd.grad(o, qkv, tangent, retain_graph=True)
    with forward_ad.dual_level():
        found = [forward_ad.unpack_dual(x).tangent for x in torch.autograd.grad(o, qkv, forward_ad.make_dual(do, tangent))]
    made = [x for x in found if x is not None]
    assert len(made) == 3
    agree(made, [x.double() for x in wanted], 5e-3)


@needs_host_clang
def test_one_gradient_alone() -> None:
    """Of q, whose kernels have branches that make nothing."""
    sizes = (1, 2, 1, 64, 256, 16)
    given = [x.detach() for x in inputs(sizes, torch.float16)]
    index = torch.tensor([[0], [1]], dtype=torch.int32).view(1, 1, 2, 1)
    for number in range(3):
        qkv: Any = [x.clone().requires_grad_(n == number) for n, x in enumerate(given)]
        o = attn_mlir.attention(*qkv, key_index=index, key_block=(32, 128), device="hip-emulated")
        (found,) = torch.autograd.grad(o.float().square().sum(), qkv[number])
        leaves = [x.double().requires_grad_() for x in given]
        right = exact(leaves, listed(index, (32, 128), 2, 64, 256))[0]
        agree([found], [torch.autograd.grad(right.square().sum(), leaves[number])[0]], 5e-3)


def test_the_inverse_is_sorted_and_whole() -> None:
    index = draw((2, 4, 2, 70, 700, 0), (16, 256), 2, 4)
    ordered = sorted_lists(index, 3)
    form = check_key_lists(index, (16, 256), {"B": 2, "Hq": 4, "Hkv": 2, "Sq": 70, "Skv": 700}, index.device)
    back, ranges, _, after, _ = inverse_of(ordered, form.listed, 128, 700, True)
    assert ranges.shape == (2, 2, 6, 2) and ranges.is_contiguous()
    for b in range(2):
        for h in range(2):
            for tile in range(6):
                begin, end = ranges[b, h, tile].tolist()
                queries = [i for i in range(5) if tile // 2 in index[b, h, i].tolist()]
                assert back[begin:end].tolist() == queries
                later = [min((n for n in index[b, h, i].tolist() if n > tile // 2), default=-1) for i in queries]
                assert after[begin:end].tolist() == later


def backward(block: tuple[int, int, int], dim: int = 128, mask: Any = None, deterministic: bool = False) -> Any:
    q, k, v = (x.detach() for x in inputs((1, 4, 2, 256, 512, dim), torch.bfloat16))
    problem = check_inputs(q, k, v, "bhsd")
    problem = dataclasses.replace(problem, inputs=dataclasses.replace(problem.inputs, lists=block))
    options = Options((None, None, None, None, mask, rows.softmax), None, "bhsd")
    call = options.call(problem, (q, k, v), NONE, dict.fromkeys(key_gradients.LISTS))
    return driver.compile_derivative(call.entry.traced.text, "cuda", "bwd", ["q", "k", "v"], deterministic)


@pytest.mark.parametrize(("block", "dim"), [((64, 64, 64), 128), ((128, 256, 128), 64), ((16, 64, 64), 128), ((96, 64, 64), 192)])
def test_hopper_makes_the_kernels(block: tuple[int, int, int], dim: int) -> None:
    """Steps of 16 queries make sums over keys by blocks of 64 columns; all lanes wait for the stage that they arrive for."""
    made = backward(block, dim, masks.causal())
    assert not made.slow
    units = [unit for name, unit in made.units.items() if "pairs" in name]
    assert all(unit.schedule["emitter"] == "hopper" and unit.kernel.block_q == block[2] for unit in units)
    if block[0] == 16:
        source = units[0].code.source
        loop = source.index("for (int first = lane; first < 16; first += 32)")
        assert source.rindex("attn::barrier_wait(", 0, loop) > source.rindex("const int stage", 0, loop)


def test_hopper_adds_in_the_order_of_keys() -> None:
    """A program waits for that with the next tile, of its block or of the next listed one, if bounds let it see the queries."""
    made = backward((64, 256, 128), mask=masks.causal(), deterministic=True)
    assert not made.slow
    (source,) = [unit.code.source for name, unit in made.units.items() if "pairs" in name]
    assert "const auto listed_bound = [&](int listed_key) -> int" in source
    assert "((block + 1) % 2 && key0 + 128 < k_n2 ? block + 1 : (" in source
    assert "> listed_bound(next_tile * 128)) attn::semaphore_wait(semaphore, next_tile + 1);" in source
    window = backward((64, 64, 64), mask=lambda b, h, i, j: (i + j) % 3 == 0, deterministic=True)
    assert not window.slow  # nothing is known of blocks, so that every entry has its semaphore


def test_hopper_draws_listed_keys_in_groups() -> None:
    """Sixteen keys of a listed block share a call of Philox, as those of dense attention do."""
    q, k, v = (x.detach() for x in inputs(CUDA, torch.float16))
    index, problem = draw(CUDA, (64, 64), 2, 3), check_inputs(q, k, v, "bhsd")
    form = check_key_lists(index, (64, 64), problem.sizes, problem.device)
    options = Options((None, None, None, None, None, rows.softmax), None, "bhsd")
    call = key_pages.paged_call((q, k, v), options, dropout_of(0.3, SEED, q), (index, form, problem))
    assert call is not None
    made: Any = driver.compile_derivative(call.call.entry.traced.text, "cuda", "", [])
    (unit,) = made.units.values()
    assert unit.schedule["emitter"] == "hopper"
    assert "philox_two(" in unit.code.source and "philox_kept(" not in unit.code.source
