"""Work on packed sequences: keys in parts, plans that are run several times, gradients whose bits do not depend on the batch."""

import copy
import pickle
from typing import Any

import pytest
import torch

from attn_mlir import ArgumentError, UnsupportedError, attention, attention_varlen, masks, plan_varlen, rows
from attn_mlir.backends.cpu.parts import LEAST
from varlen_cases import offsets

MASK = masks.causal("bottom_right")
Tensor = torch.Tensor


def given(lengths: tuple[list[int], list[int]], heads: tuple[int, int] = (4, 2)) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(sum(lengths[0]), heads[0], 16)
    k, v = torch.randn(2, sum(lengths[1]), heads[1], 16)
    return q, k, v


@pytest.mark.parametrize("heads", [(4, 2), (2, 2)])
def test_parts_are_the_whole(heads: tuple[int, int]) -> None:
    """One query of grouped heads, a few, more than are seen in parts; parts that no query sees, and sequences without keys."""
    lengths = [1, 5, 1, 0, 20, 16], [300, 1000, 0, 50, 100, 7]
    cu_q, cu_k = map(offsets, lengths)
    q, k, v = given(lengths, heads)
    whole, lse = attention_varlen(q, k, v, cu_q, cu_k, mask_mod=MASK, return_lse=True, num_splits=1)
    for splits in (2, 7, 1024):
        o, sums = attention_varlen(q, k, v, cu_q, cu_k, mask_mod=MASK, return_lse=True, num_splits=splits)
        torch.testing.assert_close(o, whole, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(sums, lse, atol=1e-5, rtol=1e-5)
        assert torch.equal(o[7:27], whole[7:27]) and not torch.equal(o[:1], whole[:1])


def test_long_caches_are_seen_as_alone_and_in_pages() -> None:
    """The model cuts each sequence by its own keys: the bits of `attention`, whatever else is in the batch."""
    lengths = [1, 3, 1], [LEAST + 100, LEAST + 1000, LEAST - 1]
    q, k, v = given(lengths)
    o = attention_varlen(q, k, v, offsets(lengths[0]), offsets(lengths[1]))
    parts = zip(*(x.split(each) for x, each in ((q, lengths[0]), (k, lengths[1]), (v, lengths[1]), (o, lengths[0]))), strict=True)
    for one_q, one_k, one_v, mine in parts:
        turned: list[Any] = [x.transpose(0, 1)[None] for x in (one_q, one_k, one_v)]
        alone = attention(turned[0], turned[1], turned[2])
        assert torch.equal(alone[0].transpose(0, 1), mine)
    pages = 64 * -(-sum(lengths[1]) // 64)
    k_cache, v_cache = (torch.cat([x, x.new_full((pages - len(x), *x.shape[1:]), torch.nan)]).unflatten(0, (-1, 64)) for x in (k, v))
    first = attention_varlen(
        q[:1],
        k_cache,
        v_cache,
        offsets([1]),
        seqused_k=torch.tensor(lengths[1][:1]).int(),
        block_table=torch.arange(pages // 64)[None].int(),
    )
    assert torch.equal(first, o[:1])


def test_what_is_refused_of_parts() -> None:
    lengths = [1, 2], [40, 50]
    q, k, v = given(lengths)

    def temperature(s: Any) -> Any:
        e = (s / (s * s).mean()).exp()
        return e / e.sum()

    with pytest.raises(UnsupportedError, match="not seen in parts"):
        attention_varlen(q, k, v, offsets(lengths[0]), offsets(lengths[1]), row=temperature, num_splits=3)
    with pytest.raises(ArgumentError, match="num_splits must be an integer"):
        attention_varlen(q, k, v, offsets(lengths[0]), offsets(lengths[1]), num_splits=-1)


def test_plans_give_what_calls_give_while_lengths_grow() -> None:
    table = torch.randperm(9).int()[:8].view(2, 4)
    cache, q, used = torch.randn(9, 16, 2, 16), torch.randn(3, 4, 16), torch.tensor([20, 0], dtype=torch.int32)
    dims: dict[str, Any] = {"q_heads": 4, "kv_heads": 2, "head_dim": 16}
    options: dict[str, Any] = {"seqused_k": used, "block_table": table, "mask_mod": MASK, "return_lse": True}
    plan, split = (plan_varlen(offsets([1, 2]), **dims, **options, num_splits=n) for n in (1, 3))
    out = torch.empty_like(q)
    with torch.no_grad():
        for lengths in ([20, 0], [21, 1], [64, 37], [0, 2]):
            used.copy_(torch.tensor(lengths))
            o, lse = attention_varlen(q, cache, cache, offsets([1, 2]), **options, num_splits=1)
            made = plan.run(q, cache, cache, out=out)
            assert made[0] is out and torch.equal(out, o) and torch.equal(made[1], lse)
            torch.testing.assert_close(split.run(q, cache, cache)[0], o, atol=1e-5, rtol=1e-5)
    used.copy_(torch.tensor([65, 2]))
    with pytest.raises(ArgumentError, match=r"seqused_k\[0\] is 65, but block_table has 4 pages of 16"):
        plan.run(q, cache, cache)


def test_plans_of_packed_keys_and_what_they_refuse() -> None:
    lengths = [17, 1, 0], [30, 5, 2]
    q, k, v = given(lengths)
    cu_q, cu_k = map(offsets, lengths)
    slopes = torch.rand(4)
    options: dict[str, Any] = {"row": rows.relu, "score_mod": lambda s, b, h, i, j: s + slopes[h] * j}
    plan = plan_varlen(cu_q, cu_k, q_heads=4, kv_heads=2, head_dim=16, **options)
    assert torch.equal(plan.run(q, k, v), attention_varlen(q, k, v, cu_q, cu_k, **options))
    slopes += 1.0  # tensors are read by every run
    assert torch.equal(plan.run(q, k, v), attention_varlen(q, k, v, cu_q, cu_k, **options))
    with pytest.raises(ArgumentError, match="the plan has q_heads 4, and q, k and v have 2"):
        plan.run(q[:, :2], k, v)
    with pytest.raises(ArgumentError, match="the plan has dtype f32, and q, k and v have f16"):
        plan.run(q.half(), k.half(), v.half())
    with pytest.raises(UnsupportedError, match="plans have no gradients"):
        plan.run(q.clone().requires_grad_(), k, v)
    with pytest.raises(ArgumentError, match="cu_seqlens_k ends at 37, beyond the 20 keys"):
        plan.run(q, k[:20], v[:20])
    cu_q[1] = 16
    with pytest.raises(ArgumentError, match="cu_seqlens_q has changed"):
        plan.run(q, k, v)
    with pytest.raises(ArgumentError, match="q_heads is 3, which is no multiple of kv_heads, 2"):
        plan_varlen(cu_q, cu_k, q_heads=3, kv_heads=2, head_dim=16)
    dims: dict[str, Any] = {"q_heads": 4, "kv_heads": 2, "head_dim": 16}
    wrong: dict[str, Any] = {"head_dim": 16.0}
    with pytest.raises(ArgumentError, match=r"head_dim must be an integer, got 16\.0"):
        plan_varlen(cu_q, cu_k, **{**dims, **wrong})
    with pytest.raises(ArgumentError, match="cu_seqlens_q must start at 0"):
        plan_varlen(cu_q + 1, cu_k, **dims)
    used, table = torch.tensor([1, 2, -1], dtype=torch.int32), torch.zeros(3, 1, dtype=torch.int32)
    several: tuple[dict[str, Any], ...] = {}, {"block_table": table}
    for pages in several:
        with pytest.raises(ArgumentError, match="seqused_k"):
            plan_varlen(cu_q, seqused_k=used, **dims, **pages)


def test_plans_see_other_tensors_in_a_captured_list() -> None:
    lengths = [2, 1], [5, 7]
    q, k, v = given(lengths)
    cu_q, cu_k = map(offsets, lengths)
    held = [torch.rand(4)]
    options: dict[str, Any] = {"score_mod": lambda s, b, h, i, j: s + held[0][h] * j}
    plan = plan_varlen(cu_q, cu_k, q_heads=4, kv_heads=2, head_dim=16, **options)
    for slopes in (held[0], torch.rand(4) - 1.0):
        held[0] = slopes
        assert torch.equal(plan.run(q, k, v), attention_varlen(q, k, v, cu_q, cu_k, **options))
    held[0] = torch.rand(4, 2)
    with pytest.raises(ArgumentError, match="has changed its kind since it was planned for"):
        plan.run(q, k, v)


def test_transforms_are_refused() -> None:
    q = torch.randn(1, 4, 32)
    cache, used, table = torch.randn(2, 16, 2, 32), torch.tensor([20], dtype=torch.int32), torch.tensor([[1, 0]], dtype=torch.int32)
    pages: dict[str, Any] = {"seqused_k": used, "block_table": table}
    cu = offsets([1])
    plan = plan_varlen(cu, q_heads=4, kv_heads=2, head_dim=32, **pages)

    def by_plan(x: Tensor) -> Tensor:
        return plan.run(x, cache, cache)

    def by_pages(x: Tensor) -> Tensor:
        return attention_varlen(x, cache, cache, cu, **pages)

    for function, what in ((by_plan, "plans have"), (by_pages, r"attention to pages \(block_table\) has")):
        message = f"{what} no derivatives, and no torch.vmap"
        with pytest.raises(UnsupportedError, match=message):
            torch.func.jvp(function, (q,), (q,))
        with pytest.raises(UnsupportedError, match=message):
            torch.vmap(function)(q[None])
        with torch.autograd.forward_ad.dual_level(), pytest.raises(UnsupportedError, match=message):
            function(torch.autograd.forward_ad.make_dual(q, q))


def test_plans_compute_of_captured_tensors_in_every_run() -> None:
    lengths = [2, 1], [5, 7]
    q, k, v = given(lengths)
    cu_q, cu_k = map(offsets, lengths)
    slopes, flag = torch.rand(4), torch.zeros(())

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * (2 * slopes)[h] if flag < 1 else score

    plan = plan_varlen(cu_q, cu_k, q_heads=4, kv_heads=2, head_dim=16, score_mod=score_mod)
    first = plan.run(q, k, v)
    slopes += 1
    second = plan.run(q, k, v)
    assert not torch.equal(first, second) and torch.equal(second, attention_varlen(q, k, v, cu_q, cu_k, score_mod=score_mod))
    flag += 1
    with pytest.raises(ArgumentError, match="captured tensors has changed"):
        plan.run(q, k, v)


def test_gradients_do_not_depend_on_the_batch() -> None:
    """Bit for bit: a long sequence is cut by its own length, wherever it lies and whatever is beside it."""
    mine, others = (300, 5000), ([2500, 1, 40], [2500, 6000, 0])

    def gradients(before: int, **options: Any) -> list[Tensor]:
        """Those of the sequence behind so many others."""
        torch.manual_seed(0)
        one = given(([mine[0]], [mine[1]]), (2, 1))
        torch.manual_seed(before)
        lengths = [*others[0][:before], mine[0], 3], [*others[1][:before], mine[1], 9]
        leaves = given(lengths, (2, 1))
        places = [sum(lengths[0][:before]), sum(lengths[1][:before]), sum(lengths[1][:before])]
        for x, part, at in zip(leaves, one, places, strict=True):
            x[at : at + len(part)] = part
            x.requires_grad_()
        cu_q, cu_k = map(offsets, lengths)
        o = attention_varlen(*leaves, cu_q, cu_k, mask_mod=MASK, batch_invariant=True, **options)
        do = torch.linspace(-1, 1, mine[0] * 32).view(mine[0], 2, 16)
        found = torch.autograd.grad(o[places[0] : places[0] + mine[0]], leaves, do)
        return [o.detach()[places[0] : places[0] + mine[0]], *(x[at : at + len(p)] for x, p, at in zip(found, one, places, strict=True))]

    alone = gradients(0)
    for before in (1, 3):
        assert all(torch.equal(a, b) for a, b in zip(gradients(before), alone, strict=True))


def test_plans_are_not_pickled() -> None:
    plan = plan_varlen(offsets([3, 5]), q_heads=2, kv_heads=2, head_dim=16)
    for copying in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="call plan_varlen again"):
            copying(plan)
