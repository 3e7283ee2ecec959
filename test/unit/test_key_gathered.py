"""Gradients of key lists that no kernel follows the inverse of: listed keys are copied, for some sequences at a time."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import attn_mlir
from amd_tools import needs_host_clang
from attn_mlir import masks
from attn_mlir.api import key_gathered, key_lists
from attn_mlir.backends.nvidia.tilelang.lowering import available
from attn_mlir.errors import ArgumentError
from key_list_cases import agree, draw, inputs, listed, through_autograd

FORMS = [
    ((1, 1), 1, (True, True)),
    ((1, 1), 8, (True, True)),
    ((1, 16), 2, (True, False)),
    ((5, 20), 1, (True, False)),
    ((1, 64), 8, (False, False)),
]
"""Blocks, heads of lists, and whether these are copied, in any order of sums and in a fixed one.

Where rows of single queries are few in a block, copies cost more than all keys; the mask of several queries has no order.
"""
SIZES, CUDA = (2, 4, 2, 21, 3000, 32), (2, 8, 2, 100, 3000, 64)
Tensor = torch.Tensor


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether lists were copied, of each call that asked, in parts of few sequences."""
    found: list[bool] = []
    real = key_gathered.attention_gathered

    def noted(*given: Any) -> Any:
        made = real(*given)
        found.append(made is not None)
        return made

    monkeypatch.setattr(key_lists, "attention_gathered", noted)
    monkeypatch.setattr(key_gathered, "COPIED_BYTES", 1 << 18)
    return found


def exact(qkv: Any, index: Tensor, block: tuple[int, int], causal: bool, score: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """o and lse in float64."""
    q, k, v = qkv
    heads, length, keys = q.shape[1], q.shape[2], k.shape[2]
    present = listed(index, block, heads, length, keys)
    if causal:
        present &= torch.arange(length)[:, None] + keys - length >= torch.arange(keys)
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    s = score(q @ k.mT / q.shape[3] ** 0.5).masked_fill(~present, -torch.inf)
    return torch.softmax(s, -1).nan_to_num() @ v, torch.logsumexp(s, -1)


def attended(device: str, sizes: tuple[int, ...], block: tuple[int, int], lists: int, layout: Any = "bhsd", **options: Any) -> None:
    """o, lse and gradients of q, k, v and captured slopes, through both."""
    on = "cuda" if device == "cuda" else "cpu"
    qkv: Any = [x.detach().to(on).requires_grad_() for x in inputs(sizes, torch.float16)]
    index = draw(sizes, block, lists, 9 if block[1] < 16 else 2)
    index[0, 0, 1] = -1
    slopes = torch.rand(sizes[1], device=on, requires_grad=True)

    def score(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return s + slopes[h] * (kv_idx - q_idx) * 0.01

    given = [x.transpose(1, 2) for x in qkv] if layout == "bshd" else qkv
    causal = masks.causal("bottom_right")
    o, lse = attn_mlir.attention(
        *given, score_mod=score, mask_mod=causal, key_index=index.to(on), key_block=block, device=device, layout=layout, return_lse=True,
        **options,
    )  # fmt: skip
    o = o.transpose(1, 2) if layout == "bshd" else o
    leaves = [x.detach().cpu().double().requires_grad_() for x in (*qkv, slopes)]

    def right_score(s: Tensor) -> Tensor:
        return s + leaves[3][:, None, None] * (torch.arange(sizes[4]) - torch.arange(sizes[3])[:, None]) * 0.01

    right, right_lse = exact(leaves[:3], index, block, True, right_score)
    agree([o.cpu()], [right], 3e-3)
    there = torch.isfinite(right_lse)
    assert torch.equal(torch.isfinite(lse).cpu(), there) and not there.all()
    agree([lse.cpu()[there]], [right_lse[there]], 3e-3)
    do, dlse = torch.randn_like(o), torch.randn_like(lse)
    loss = (o * do).sum() + (lse.masked_fill(~there.to(on), 0) * dlse).sum()
    right_loss = (right * do.cpu()).sum() + (right_lse.masked_fill(~there, 0) * dlse.cpu()).sum()
    found = torch.autograd.grad(loss, [*qkv, slopes])
    agree([x.cpu() for x in found], torch.autograd.grad(right_loss, leaves), 1e-2)


@needs_host_clang
@pytest.mark.parametrize(
    ("block", "lists", "layout"),
    [((1, 1), 1, "bhsd"), ((1, 1), 2, "bshd"), ((1, 1), 4, "bhsd"), ((1, 24), 2, "bshd"), ((7, 20), 1, "bhsd")],
)
def test_emulated_amd(block: tuple[int, int], lists: int, layout: Any, taken: list[bool]) -> None:
    attended("hip-emulated", SIZES, block, lists, layout)
    assert taken == [True]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::attn_mlir.PerformanceWarning")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("block", "lists", "gathered"), FORMS)
def test_nvidia(block: tuple[int, int], lists: int, gathered: tuple[bool, bool], deterministic: bool, taken: list[bool]) -> None:
    if deterministic and not gathered[True] and not available():
        pytest.skip("a fixed order of captured gradients goes through TileLang")
    attended("cuda", CUDA, block, lists, deterministic=deterministic)
    assert taken == [gathered[deterministic]]


@needs_host_clang
@pytest.mark.filterwarnings("ignore::attn_mlir.PerformanceWarning")
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("block", "lists", "gathered"), FORMS)
def test_which_lists_hopper_copies(
    block: tuple[int, int], lists: int, gathered: tuple[bool, bool], deterministic: bool, dim: int, taken: list[bool], monkeypatch: Any
) -> None:
    """Captured slopes whose index is that of a row, where heads are rows, included; where that has no fixed order, heads are none.

    Calls end with the decision: others here run what follows it.
    """
    real, decide = key_gathered._no_kernels, key_lists.attention_gathered

    class Decided(Exception):
        pass

    def decided(*given: Any) -> Any:
        decide(*given)
        raise Decided

    copies = SimpleNamespace(apply=lambda gathered, calls, table, q, *tensors: [torch.empty_like(q)])
    monkeypatch.setattr(key_gathered, "GatheredForward", copies)
    monkeypatch.setattr(key_lists, "attention_gathered", decided)
    monkeypatch.setattr(key_gathered, "_no_kernels", lambda call, device, ordered: real(call, "cuda", ordered))
    sizes = (*CUDA[:5], dim)
    qkv: Any = [x.detach().requires_grad_() for x in inputs(sizes, torch.float16)]
    slopes = torch.rand(sizes[1], requires_grad=True)
    index = draw(sizes, block, lists, 9 if block[1] < 16 else 2)
    with pytest.raises(Decided):
        attn_mlir.attention(
            *qkv, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), mask_mod=masks.causal("bottom_right"),
            deterministic=deterministic, key_index=index, key_block=block, device="hip-emulated",
        )  # fmt: skip
    assert taken == [gathered[deterministic]]


@needs_host_clang
def test_second_derivatives_go_through_a_table(taken: list[bool]) -> None:
    qkv: Any = [x.detach().requires_grad_() for x in inputs((1, 2, 1, 4, 300, 16), torch.float16)]
    index = draw((1, 2, 1, 4, 300, 16), (1, 1), 1, 5)

    def twice(o: Tensor, tensors: Any) -> Any:
        (first,) = torch.autograd.grad(o.square().sum(), tensors[0], create_graph=True)
        return torch.autograd.grad(first.square().sum(), tensors)

    found = twice(attn_mlir.attention(*qkv, key_index=index, key_block=(1, 1), device="hip-emulated"), qkv)
    leaves = [x.detach().double().requires_grad_() for x in qkv]
    agree(found, twice(exact(leaves, index, (1, 1), False, lambda s: s)[0], leaves), 2e-2)
    assert taken == [True]


@pytest.fixture
def parted(taken: list[bool], monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The same where the sequences of `Captured` are two parts."""
    monkeypatch.setattr(key_gathered, "COPIED_BYTES", 1 << 15)
    return taken


class Captured:
    """A call whose score adds what `slopes` and a number say of keys, and what its gradients are in float64."""

    def __init__(self) -> None:
        sizes = (1, 4, 2, 21, 3000, 32)
        self.qkv: Any = [x.detach().requires_grad_() for x in inputs(sizes, torch.float16)]
        self.index = draw(sizes, (1, 1), 1, 9)
        self.slopes = torch.rand(4, requires_grad=True)
        self.do = torch.randn(1, 4, 21, 32)
        self.grads = self.right(lambda slopes: slopes)

    def attended(self, score: Callable[..., Any], *qkv: Tensor) -> Tensor:
        given: Any = qkv or self.qkv
        return attn_mlir.attention(*given, score_mod=score, key_index=self.index, key_block=(1, 1), device="hip-emulated")

    def right(self, made: Callable[[Tensor], Tensor], twice: bool = False) -> Any:
        """The gradients for slopes that are `made` of what is captured, or with `twice` what `of_first` says."""
        leaves = [x.detach().double().requires_grad_() for x in (*self.qkv, self.slopes)]
        o, _ = exact(leaves[:3], self.index, (1, 1), False, lambda s: s + made(leaves[3])[:, None, None] * torch.arange(3000) * 0.001)
        return self.of_first(o, leaves) if twice else torch.autograd.grad((o * self.do).sum(), leaves)

    def of_first(self, o: Tensor, tensors: Any) -> Any:
        first = torch.autograd.grad((o * self.do).sum(), tensors, create_graph=True)
        return torch.autograd.grad(first[0].square().sum() + first[3].square().sum(), tensors)

    def agrees(self, o: Tensor) -> None:
        agree(torch.autograd.grad((o * self.do).sum(), [*self.qkv, self.slopes]), self.grads, 1e-2)


@needs_host_clang
def test_functions_are_those_of_the_forward(parted: list[bool]) -> None:
    """As in a loop over layers: the variable is another tensor, or another number, when gradients are asked for."""
    case, step = Captured(), 0.001
    slopes = case.slopes
    o = case.attended(lambda s, b, h, i, j: s + slopes[h] * (j * 0.001))
    slopes = torch.rand(4, requires_grad=True) * 5
    case.agrees(o)
    slopes = case.slopes
    o = case.attended(lambda s, b, h, i, j: s + slopes[h] * (j * step))
    step = 1.0
    case.agrees(o)
    assert parted == [True, True]


@needs_host_clang
def test_what_functions_compute_of_captured_tensors_has_a_gradient(parted: list[bool]) -> None:
    case = Captured()
    slopes = case.slopes
    o = case.attended(lambda s, b, h, i, j: s + slopes.exp()[h] * (j * 0.001))
    agree(torch.autograd.grad((o * case.do).sum(), [*case.qkv, slopes]), case.right(torch.exp), 1e-2)
    assert parted == [True]


@needs_host_clang
def test_second_derivatives_are_of_functions_of_the_forward(parted: list[bool]) -> None:
    case, step = Captured(), 0.001
    slopes = case.slopes
    o = case.attended(lambda s, b, h, i, j: s + slopes.exp()[h] * (j * step))
    slopes, step = torch.rand(4) * 5, 1.0
    agree(case.of_first(o, [*case.qkv, case.slopes]), case.right(torch.exp, True), 3e-2)
    assert parted == [True]


@needs_host_clang
@pytest.mark.parametrize("grad", [False, True])
def test_captured_tensors_that_changed_are_refused(grad: bool, parted: list[bool]) -> None:
    case = Captured()
    slopes = case.slopes.detach() if not grad else case.slopes * 1.0
    o = case.attended(lambda s, b, h, i, j: s + slopes[h] * (j * 0.001))
    with torch.no_grad():
        slopes.mul_(100)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(o.sum(), case.qkv)
    assert parted == [True]


@needs_host_clang
@pytest.mark.parametrize("through", ["hooks", "save_on_cpu", "checkpoint"])
def test_saved_tensors_come_back_as_others(through: str, parted: list[bool]) -> None:
    case = Captured()
    slopes = case.slopes

    def layer(*qkv: Tensor) -> Tensor:
        return case.attended(lambda s, b, h, i, j: s + slopes[h] * (j * 0.001), *qkv)

    case.agrees(through_autograd(through, layer, case.qkv, lambda x: x.detach().clone()))
    assert parted and all(parted)


@needs_host_clang
def test_lists_of_most_keys_and_wrong_ones(taken: list[bool]) -> None:
    qkv: Any = inputs((1, 2, 1, 4, 40, 16), torch.float16)
    index = draw((1, 2, 1, 4, 40, 16), (1, 1), 1, 30)
    attn_mlir.attention(*qkv, key_index=index, key_block=(1, 1), device="hip-emulated")
    assert taken == [False]
    index = torch.full((1, 1, 4, 1), 40, dtype=torch.int32)
    with pytest.raises(ArgumentError, match="key_index holds 40, but there are"):
        attn_mlir.attention(*qkv, key_index=index, key_block=(1, 1), device="hip-emulated")
