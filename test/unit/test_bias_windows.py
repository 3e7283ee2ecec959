"""Captured tensors that are read by tiles: dense biases and tables of differences, with gradients, against float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import Attention, attention, attention_varlen, masks

B, H, HKV = 2, 4, 2
LENGTHS = [(1, 17), (17, 1), (127, 33), (70, 1000)]
Make = Callable[[int, int], list[torch.Tensor]]
Score = Callable[..., Any]
CLAMP = 16


def in_nan(*shape: int) -> torch.Tensor:
    """A tensor with strides of its own, in memory that is NaN elsewhere."""
    memory = torch.full((*shape[:-1], 2 * shape[-1] + 3), float("nan"))
    view = memory[..., 2:-1:2]
    view[...] = torch.randn(shape)
    return view


def rows_in_nan(*shape: int) -> torch.Tensor:
    """The same with contiguous rows, which vectors may read: not beyond their ends."""
    memory = torch.full((*shape[:-1], shape[-1] + 5), float("nan"))
    memory[..., 2:-3] = torch.randn(shape)
    return memory[..., 2:-3]


def clamped(t: list[Any], s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """A learned table read through buckets."""
    near = torch.clamp(q - k, -CLAMP, CLAMP) + CLAMP
    return s * torch.tanh(t[0][t[1][near], h])


def several(t: list[Any], s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s * t[0][q, k] + t[1][h, q - k + t[2].shape[0]] + t[2][k] * t[3][h, q]


def buckets(sq: int, skv: int) -> list[torch.Tensor]:
    return [torch.randn(9, H), torch.arange(2 * CLAMP + 1) // 4]


KINDS: dict[str, tuple[Make, Score]] = {
    "heads": (lambda sq, skv: [rows_in_nan(1, H, sq, skv)], lambda t, s, b, h, q, k: s + t[0][0, h, q, k]),
    "batch, a factor": (lambda sq, skv: [in_nan(B, sq, skv)], lambda t, s, b, h, q, k: s * t[0][b, q, k]),
    "turned": (lambda sq, skv: [rows_in_nan(H, skv, sq)], lambda t, s, b, h, q, k: s + t[0][h, k, q]),
    "differences": (lambda sq, skv: [rows_in_nan(H, sq + skv)], lambda t, s, b, h, q, k: s + t[0][h, q - k]),
    "from the end": (lambda sq, skv: [in_nan(sq + skv)], lambda t, s, b, h, q, k: s + t[0][k - q]),
    "buckets": (buckets, clamped),
    "several": (lambda sq, skv: [rows_in_nan(sq, skv), in_nan(H, sq + skv), torch.randn(skv), torch.randn(H, sq)], several),
}


def wanted(tensors: list[torch.Tensor], captures: list[torch.Tensor], score: Score, mask: Any) -> torch.Tensor:
    """Softmax attention of doubles; fully masked rows give 0."""
    q, k, v = tensors
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    b, h, i, j = (torch.arange(n).view([-1 if m == place else 1 for m in range(4)]) for place, n in enumerate(sizes))
    s = score(captures, q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, b, h, i, j)
    if mask is not None:
        s = s.masked_fill(~mask(b, h, i, j), -torch.inf)
    return torch.softmax(s, -1).nan_to_num(0.0) @ v


def check(kind: str, sizes: tuple[int, int], types: tuple[torch.dtype, torch.dtype], mask: Any = None, device: str = "cpu") -> None:
    make, score = KINDS[kind]
    captures = [t.to(types[1]) if t.is_floating_point() and types[1] != torch.float32 else t for t in make(*sizes)]
    learned = [t.requires_grad_() for t in captures if t.is_floating_point()]
    q = torch.randn(B, H, sizes[0], 16).to(types[0])
    k, v = torch.randn(2, B, HKV, sizes[1], 16).to(types[0])
    inputs = [x.requires_grad_() for x in (q, k, v)]
    o = attention(q, k, v, score_mod=lambda s, b, h, i, j: score(captures, s, b, h, i, j), mask_mod=mask, device=device)
    do = torch.randn_like(o)
    made = [o, *torch.autograd.grad(o, [*inputs, *learned], do)]
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    wide = [t.detach().double().requires_grad_() if t.is_floating_point() else t for t in captures]
    o = wanted(doubles, wide, score, mask)
    expected = [o, *torch.autograd.grad(o, [*doubles, *(t for t in wide if t.is_floating_point())], do.double())]
    tolerance = 1e-5 if types == (torch.float32, torch.float32) else 2e-2
    for one, other in zip(made, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * max(1.0, other.abs().max().item()))


@pytest.mark.parametrize("kind", KINDS)
def test_lengths(kind: str) -> None:
    """One program for all of them; gradients of everything."""
    for sizes in LENGTHS:
        check(kind, sizes, (torch.float32, torch.float32))


@pytest.mark.parametrize(
    ("kind", "types"),
    [
        ("heads", (torch.float32, torch.float16)),
        ("heads", (torch.bfloat16, torch.bfloat16)),
        ("buckets", (torch.float16, torch.float32)),
        ("differences", (torch.float32, torch.bfloat16)),
        ("turned", (torch.float32, torch.float64)),
    ],
)
def test_types(kind: str, types: tuple[torch.dtype, torch.dtype]) -> None:
    """A bias has a type of its own, and so has its gradient."""
    check(kind, (100, 129), types)


@pytest.mark.parametrize("kind", ["heads", "differences"])
def test_empty_rows(kind: str) -> None:
    """What a mask leaves out has no gradient."""
    check(kind, (70, 90), (torch.float32, torch.float32), lambda b, h, i, j: i >= j + 5)


@needs_host_clang
@pytest.mark.parametrize("kind", ["buckets", "heads"])
def test_emulated(kind: str) -> None:
    """A GPU's bands and wide reads, with rows and columns past the last ones, and blocks of keys that a mask cuts."""
    check(kind, (130, 161), (torch.bfloat16, torch.float32), lambda b, h, i, j: i >= j - 40, "hip-emulated")


def test_masks_of_booleans() -> None:
    """A mask that is captured densely, and one by differences."""
    sq, skv = 45, 77
    dense, apart = torch.rand(H, sq, skv) > 0.3, torch.rand(sq + skv) > 0.2
    q, (k, v) = torch.randn(B, H, sq, 16), torch.randn(2, B, HKV, skv, 16)

    def keep(b: Any, h: Any, i: Any, j: Any) -> Any:
        return dense[h, i, j] & apart[i - j + skv]

    expected = wanted([x.double() for x in (q, k, v)], [], lambda t, s, *_: s, keep)
    torch.testing.assert_close(attention(q, k, v, mask_mod=keep).double(), expected, rtol=1e-5, atol=1e-5)


def of_table(t: list[Any], s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + t[0][h, i - j + 80]


def test_packed_sequences() -> None:
    """Positions are those within a sequence."""
    lengths, table = [5, 40, 1, 77], torch.randn(H, 160)
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    q, (k, v) = torch.randn(sum(lengths), H, 16), torch.randn(2, sum(lengths), HKV, 16)

    def by_difference(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + table[h, i - j + 80]

    made = attention_varlen(q, k, v, offsets, offsets, score_mod=by_difference, mask_mod=masks.causal())
    for first, last in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        parts = [x[None, first:last].transpose(1, 2).double() for x in (q, k, v)]
        expected = wanted(parts, [table.double()], of_table, lambda b, h, i, j: i >= j)
        torch.testing.assert_close(made[first:last].double(), expected[0].transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_the_same_bits_on_any_number_of_threads() -> None:
    """Diagonals are summed in a fixed order, and those of programs that share a table as well."""
    table = torch.randn(33, requires_grad=True)
    q, k, v = (torch.randn(B, H, 130, 16) for _ in range(3))
    threads = torch.get_num_threads()
    found = []
    for number in (1, 2):
        torch.set_num_threads(number)
        o = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[torch.clamp(i - j, -16, 16) + 16])
        found.append(torch.autograd.grad(o.square().sum(), table)[0])
    torch.set_num_threads(threads)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("mod", "tile"),
    [
        (lambda t: lambda s, b, h, i, j: s + t[h, i, j], "tile.load_window"),
        (lambda t: lambda s, b, h, i, j: s + t[h, 0, torch.clamp(i - j, 0, 3)], "tile.band"),
    ],
)
def test_nothing_is_read_pair_by_pair(mod: Any, tile: str) -> None:
    """The kernel that runs has a tile in place of a read in its map."""
    program = Attention(score_mod=mod(torch.randn(H, 20, 20)))
    program(*torch.randn(3, B, H, 20, 16))
    text = program.ir("tile-schedule")
    assert text.count(f'"{tile}"') == 1
    assert "memref.load" not in text.partition('"tile.map"(%c32, %')[2].partition("tile.yield")[0]
