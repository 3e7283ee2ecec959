"""Wrong offsets, lengths and tables in replays of CUDA graphs: nothing is written outside of results and caches, or read outside of inputs.

Every tensor that the library makes, and every one that is given, lies between margins. Margins of what is written hold a pattern, which
must be there afterwards; those of what is read hold NaN, which would show in o.
"""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attn_mlir import append_kv, attention_varlen, masks, plan_varlen
from attn_mlir.backends import allocation
from gpu_cases import GPU

pytestmark = GPU
MARGIN, PATTERN = 1 << 18, 0xA5
LOW, HIGH = -(2**31), 2**31 - 1
WRONG = {
    "zeros": lambda n: [0] * n,
    "falling": lambda n: [100 - 20 * i for i in range(n)],
    "negative": lambda n: [-7 * i for i in range(n)],
    "far": lambda n: [i * 100_000 for i in range(n)],
    "highest": lambda n: [HIGH] * n,
    "lowest": lambda n: [LOW] * n,
    "ends of the range": lambda n: [LOW if i % 2 else HIGH for i in range(n)],
    "begins late": lambda n: [63 + i for i in range(n)],
    "one has all": lambda n: [0] * (n // 2) + [HIGH] * (n - n // 2),
}
Tensor = torch.Tensor


class Margins:
    """Tensors between margins."""

    def __init__(self) -> None:
        self.kept: list[tuple[Tensor, int]] = []

    def make(self, shape: Any, strides: Any, dtype: torch.dtype, device: Any, fill: int = PATTERN) -> Tensor:
        """A tensor of these strides, whose margins hold a pattern of bytes."""
        spread = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) if all(shape) else 0
        size = spread * dtype.itemsize
        whole = torch.empty(2 * MARGIN + -(-size // 256) * 256, dtype=torch.uint8, device=device)
        whole[:MARGIN].fill_(fill)
        whole[MARGIN + size :].fill_(fill)
        if fill == PATTERN:
            self.kept.append((whole, size))
        return whole[MARGIN : MARGIN + size].view(dtype).as_strided(shape, strides, MARGIN // dtype.itemsize)

    def between(self, x: Tensor, fill: int = PATTERN) -> Tensor:
        """A dense tensor with the values of `x`."""
        return self.make(x.shape, x.contiguous().stride(), x.dtype, "cuda", fill).copy_(x)

    def empty(self, *shape: Any, dtype: Any = torch.float32, device: Any = "cpu", **_: Any) -> Tensor:
        """For `torch.empty`."""
        meta = torch.empty(*shape, device="meta")
        return self._poisoned(self.make(meta.shape, meta.stride(), dtype or torch.float32, device))

    def empty_strided(self, shape: Any, strides: Any, dtype: Any = torch.float32, device: Any = "cpu", **_: Any) -> Tensor:
        """For `torch.empty_strided`."""
        return self._poisoned(self.make(tuple(shape), tuple(strides), dtype or torch.float32, device))

    @staticmethod
    def _poisoned(x: Tensor) -> Tensor:
        return allocation.poison(x) if allocation.POISONED else x

    def check(self) -> None:
        """Fails where a margin holds something else."""
        torch.cuda.synchronize()
        for whole, size in self.kept:
            changed = torch.cat([whole[:MARGIN], whole[MARGIN + size :]]) != PATTERN
            assert not changed.any(), f"{int(changed.sum())} bytes beside a tensor of {size} are written"


@pytest.fixture
def margins(monkeypatch: pytest.MonkeyPatch) -> Margins:
    """The library's memory comes between margins."""
    for folder in ("backends.gpu", "backends.nvidia", "api", "runtime"):
        package = importlib.import_module(f"attn_mlir.{folder}")
        for found in pkgutil.iter_modules(package.__path__):
            if found.name != "tilelang":
                importlib.import_module(f"attn_mlir.{folder}.{found.name}")
    made, before = Margins(), {"empty": allocation.empty, "empty_strided": allocation.empty_strided}
    for name, module in list(sys.modules.items()):
        for function, was in before.items():
            if name.startswith("attn_mlir") and getattr(module, function, None) is was:
                monkeypatch.setattr(module, function, getattr(made, function))
    return made


def ints(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device="cuda")


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape).half()


def captured(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of a call, which ran once before, and what it returns."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    return graph, results


def replays(
    margins: Margins, call: Callable[[], Any], changed: dict[str, Tensor], reads: bool = True, written: tuple[Tensor, ...] = ()
) -> None:
    """Replays of a call with right contents, then wrong ones in each of the tensors and all, then right ones again, with the same bits.

    `written` in place get back what they held, before the last.
    """
    before = [x.clone() for x in written]
    right = {name: x.clone() for name, x in changed.items()}
    graph, results = captured(call)
    results = results if isinstance(results, tuple) else (results,)
    graph.replay()
    margins.check()
    wanted = [x.clone() for x in results]
    assert all(torch.isfinite(x).all() for x in wanted) and (wanted[0] != 0).any()
    for kind, make in WRONG.items():
        for names in (*([name] for name in changed), list(changed)):
            for name in names:
                changed[name].copy_(ints(make(changed[name].numel())).view_as(changed[name]))
            graph.replay()
            try:
                margins.check()
            except AssertionError as error:
                raise AssertionError(f"{kind} in {names}: {error}") from None
            if reads:
                assert all(not torch.isnan(x).any() for x in results), f"{kind} in {names}: something outside is read"
            for name in names:
                changed[name].copy_(right[name])
    for x, held in zip(written, before, strict=True):
        x.copy_(held)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))


DECODING = [(8, 2, 128, 128, 0), (8, 2, 64, 64, 5), (4, 4, 128, 128, 1), (64, 1, 576, 512, 0), (64, 1, 576, 512, 1)]


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "values", "splits"), DECODING)
@pytest.mark.parametrize("size", [0, 16, 64, 24])
def test_decoding(margins: Margins, heads: int, kv_heads: int, dim: int, values: int, splits: int, size: int) -> None:
    """One query for each of several sequences, some without keys, packed and in pages."""
    if size == 24 and values != dim:
        size = 1
    lengths = [70, 0, 129, 1, 200]
    q, keys = margins.between(normal(5, heads, dim), 0xFF), sum(lengths)
    pages = -(-512 // size) if size else 0
    k = margins.between(normal(*((pages, size) if size else (keys,)), kv_heads, dim), 0xFF)
    v = k[..., :values] if values < dim else margins.between(normal(*k.shape), 0xFF)
    changed: dict[str, Any] = {"cu_seqlens_q": ints(range(6))}
    if size:
        most = -(-200 // size)
        changed |= {"seqused_k": ints(lengths), "block_table": torch.randint(0, pages, (5, most), device="cuda").int()}
    else:
        changed |= {"cu_seqlens_k": ints([0, *torch.tensor(lengths).cumsum(0).tolist()])}
    with torch.no_grad():
        replays(margins, lambda: attention_varlen(q, k, v, **changed, max_q=1, max_k=200, num_splits=splits), changed)


@pytest.mark.parametrize("size", [0, 16, 64])
@pytest.mark.parametrize(("dim", "heads"), [(64, 4), (128, 4), (128, 32)])
def test_several_queries(margins: Margins, dim: int, heads: int, size: int) -> None:
    """With many heads of a group, and few queries, as single queries."""
    queries, lengths = [17, 0, 130, 1, 5] if heads == 4 else [2, 0, 4, 1, 3], [70, 3, 129, 1, 200]
    q, keys = margins.between(normal(sum(queries) + 9, heads, dim), 0xFF), sum(lengths)
    k, v = (margins.between(normal(*((40, size) if size else (keys + 5,)), 2, dim), 0xFF) for _ in range(2))
    changed: dict[str, Any] = {"cu_seqlens_q": ints([0, *torch.tensor(queries).cumsum(0).tolist()])}
    if size:
        changed |= {"seqused_k": ints(lengths), "block_table": torch.randint(0, 40, (5, -(-200 // size)), device="cuda").int()}
    else:
        changed |= {"cu_seqlens_k": ints([0, *torch.tensor(lengths).cumsum(0).tolist()])}
    options: dict[str, Any] = {"mask_mod": masks.causal("bottom_right"), "max_q": max(queries), "max_k": 200, "return_lse": True}
    with torch.no_grad():  # lse of rows that see nothing is -inf, which no replay below asks about
        replays(margins, lambda: attention_varlen(q, k, v, **changed, **options)[0], changed)


@pytest.mark.parametrize(("heads", "dim", "values", "block"), [((64, 1), 576, 512, 1), ((8, 2), 128, 128, 64), ((8, 2), 64, 64, 1)])
@pytest.mark.parametrize("size", [0, 64])
def test_key_lists(margins: Margins, heads: tuple[int, int], dim: int, values: int, block: int, size: int) -> None:
    """Lists, too, may hold anything."""
    queries, lengths = [2, 0, 4, 1, 3], [70, 3, 129, 1, 200]
    q, keys = margins.between(normal(sum(queries) + 2, heads[0], dim), 0xFF), sum(lengths)
    k = margins.between(normal(*((12, size) if size else (keys,)), heads[1], dim), 0xFF)
    v = k[..., :values] if values < dim else margins.between(normal(*k.shape), 0xFF)
    changed: dict[str, Any] = {"cu_seqlens_q": ints([0, *torch.tensor(queries).cumsum(0).tolist()])}
    if size:
        changed |= {"seqused_k": ints(lengths), "block_table": torch.randint(0, 12, (5, 4), device="cuda").int()}
    else:
        changed |= {"cu_seqlens_k": ints([0, *torch.tensor(lengths).cumsum(0).tolist()])}
    changed["key_index"] = torch.randint(-1, 3, (len(q), heads[1], 30), device="cuda").int()
    options: dict[str, Any] = {"mask_mod": masks.causal("bottom_right"), "max_q": 4, "max_k": 200, "key_block": (1, block)}
    with torch.no_grad():
        replays(margins, lambda: attention_varlen(q, k, v, **changed, **options), changed)


@pytest.mark.parametrize("deterministic", [False, True])
def test_training(margins: Margins, deterministic: bool) -> None:
    """Forward and backward in one graph."""
    lengths = [70, 3, 129, 0, 200]
    leaves = [margins.between(normal(sum(lengths) + 9, heads, 64), 0xFF).requires_grad_() for heads in (4, 2, 2)]
    do = margins.between(normal(sum(lengths) + 9, 4, 64), 0xFF)
    changed: dict[str, Any] = {name: ints([0, *torch.tensor(lengths).cumsum(0).tolist()]) for name in ("cu_seqlens_q", "cu_seqlens_k")}

    def call() -> tuple[Tensor, ...]:
        options: dict[str, Any] = {"mask_mod": masks.causal(), "max_q": 200, "max_k": 200, "deterministic": deterministic}
        o = attention_varlen(leaves[0], leaves[1], leaves[2], **changed, **options)
        return (o.detach(), *torch.autograd.grad(o, leaves, do))

    replays(margins, call, changed, reads=False)


def test_plans(margins: Margins) -> None:
    q, (k, v) = margins.between(normal(5, 8, 128), 0xFF), (margins.between(normal(20, 16, 2, 128), 0xFF) for _ in range(2))
    changed: dict[str, Any] = {"seqused_k": ints([70, 0, 129, 1, 200]), "block_table": torch.randint(0, 20, (5, 13), device="cuda").int()}
    cu = ints(range(6))
    plan = plan_varlen(cu, q_heads=8, kv_heads=2, head_dim=128, dtype=torch.float16, max_q=1, max_k=208, **changed)
    with torch.no_grad():
        replays(margins, lambda: plan.run(q, k, v), changed)


@pytest.mark.parametrize("paged", [False, True])
def test_append_kv(margins: Margins, paged: bool) -> None:
    """Wrong positions, rows and pages: caches keep what they hold where nothing may be written."""
    caches = [margins.between(normal(20, 16, 2, 64)) for _ in range(2)]
    new = [normal(3, 4, 2, 64).cuda() for _ in range(2)]
    where: dict[str, Any] = {"block_table": ints(range(6)).view(3, 2)} if paged else {"cache_batch_idx": ints([4, 0, 7])}
    changed: dict[str, Any] = {"seqused_k": ints([0, 5, 9]), **where}

    def call() -> tuple[Tensor, ...]:
        append_kv(caches[0], caches[1], new[0], new[1], changed["seqused_k"], **where)
        return tuple(caches)

    replays(margins, call, changed, written=tuple(caches))
