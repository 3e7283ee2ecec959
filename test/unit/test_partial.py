"""Partial results: merged in any order and grouping they are the attention to all keys, of rows of the user's own."""

import copy
import pickle
import threading
import types
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import ArgumentError, UnsupportedError, attention, merge, rows
from attn_mlir.api import partial_form
from attn_mlir.frontend.elementary import detach
from partial_cases import ROWS, Case, inputs, two_reductions

CUTS = {1: (0, 1), 17: (0, 0, 5, 17), 127: (0, 64, 64, 101, 127), 1000: (0, 1, 999, 1000)}


def case_of(row: str) -> Case:
    return Case(row, torch.tensor([0.5, -1.0, 2.0, 0.0]))


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_parts_are_the_whole(row: str, dtype: torch.dtype) -> None:
    case = case_of(row)
    for queries, keys in ((1, 17), (17, 127), (33, 1)) if dtype == torch.bfloat16 else ((17, 1), (1, 127), (33, 1000), (17, 17)):
        q, k, v = inputs(queries, keys, dtype)
        p = case.parts(q, k, v, CUTS[keys])
        wanted = case.reference(q, k, v)
        bound = (2e-5 if dtype == torch.float32 else 2e-2) * wanted.abs().max().item() + 1e-6
        for made in (merge(*p), merge(*p[::-1]), merge(p[-1], merge(*p[:-1])) if p[:-1] else p[0]):
            o = made.finalize()
            assert o.dtype == dtype
            assert (o.double() - wanted).abs().max() <= bound
        assert all(x.dtype == torch.float32 for x in (*p[0].accumulators, *p[0].states.values()))


def test_16_bit_parts_are_merged_before_they_are_rounded() -> None:
    """Many parts of bf16 are as far off as one: accumulators are not rounded."""
    case = case_of("softmax")
    q, k, v = inputs(17, 127, torch.bfloat16)
    wanted = case.reference(q, k, v)
    whole = attention(q, k, v, **case.options()).double()
    parts = merge(*case.parts(q, k, v, range(128))).finalize().double()
    assert (parts - wanted).abs().mean() <= 1.2 * (whole - wanted).abs().mean()


def test_rows_without_keys_and_parts_without_keys() -> None:
    q, k, v = inputs(17, 127)
    case = case_of("softmax")
    empty = case.partial(q, k, v, 30, 30)
    assert not empty.finalize().any()
    p = merge(empty, case.partial(q, k, v, 0, 127), empty)
    o = p.finalize()
    assert torch.isfinite(o).all()
    assert not o[:, :, 3::5].any()
    masked = case.partial(q, k, v, 0, 127, return_lse=True)
    assert (masked.lse[:, :, 3::5] == -torch.inf).all()
    assert torch.isfinite(masked.lse[:, :, 4]).all()


@pytest.mark.parametrize("row", ROWS)
def test_gradients(row: str) -> None:
    q, k, v = (x.requires_grad_() for x in inputs(17, 127))
    case = case_of(row)
    case.slopes.requires_grad_()
    wrt = [q, k, v, case.slopes]
    wanted = case.reference(q, k, v)
    do = torch.randn_like(wanted)
    expected = torch.autograd.grad(wanted, wrt, do)
    p = case.parts(q, k, v, CUTS[127])
    o = merge(p[3], merge(p[1], p[0]), p[2]).finalize()
    assert (o.double() - wanted).abs().max() < 1e-5
    for made, right in zip(torch.autograd.grad(o, wrt, do.float()), expected, strict=True):
        assert (made - right).abs().max() <= 2e-5 * right.abs().max() + 1e-6


def test_rows_that_detach_other_values_have_no_gradients() -> None:
    """Online forms have no `detach`: where it holds for all sums it is that of states, else nothing is wrong in silence."""

    def row(s: Any) -> Any:
        return s / (1 + detach(abs(s).sum()) + (s * s).sum())

    q, k, v = inputs(5, 20)
    with torch.no_grad():
        assert attention(q, k, v, row=row, return_partial=True).finalize().isfinite().all()
    with pytest.raises(UnsupportedError, match="detaches something else than all its reductions"):
        attention(q.requires_grad_(), k, v, row=row, return_partial=True)


def test_gradients_of_bf16() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(17, 127, torch.bfloat16))
    case = case_of("softmax")
    wanted = case.reference(q, k, v)
    do = torch.randn_like(wanted)
    o = merge(*case.parts(q, k, v, CUTS[127])).finalize()
    expected = torch.autograd.grad(wanted, (q, k, v), do)
    for made, right in zip(torch.autograd.grad(o, (q, k, v), do.bfloat16()), expected, strict=True):
        assert made.dtype == torch.bfloat16
        assert (made - right).abs().max() <= 2e-2 * right.abs().max()


def test_an_end_that_reads_captures() -> None:
    """A sink is known at the end: it counts once, and has its gradient; rows do not change places where the end reads theirs."""
    sink = torch.tensor([0.3, -1.0, 2.0, 0.5], requires_grad=True)
    row = rows.softmax_sink(sink)
    q, k, v = inputs(5, 17)
    whole = attention(q, k, v, row=row)
    parts = [attention(q, k[:, :, a:b], v[:, :, a:b], row=row, return_partial=True) for a, b in ((0, 4), (4, 17))]
    merged = merge(*parts)
    torch.testing.assert_close(merged.finalize(), whole, atol=1e-5, rtol=1e-5)
    do = torch.randn_like(whole)
    torch.testing.assert_close(*(torch.autograd.grad(o, sink, do)[0] for o in (merged.finalize(), whole)), atol=1e-4, rtol=1e-4)
    assert torch.equal(merged.apply(torch.clone, moves=False).finalize(), merged.finalize())
    with torch.no_grad():
        ended, _ = merged.finalize(), sink.mul_(3)
    # The end is that of the call; a new call sees the new sink.
    assert torch.equal(merged.finalize(), ended)
    again = attention(q, k, v, row=row, return_partial=True).finalize()
    torch.testing.assert_close(again, attention(q, k, v, row=row), atol=1e-5, rtol=1e-5)
    assert (again - ended).abs().max() > 1e-3
    with pytest.raises(UnsupportedError, match="reads b, h or q_idx"):
        merged.apply(lambda x: x.flip(2)).finalize()


def test_sizes_alone_are_not_copied() -> None:
    """The end reads how long a captured tensor is, and holds the tensor itself."""
    table = torch.rand(1000)

    def row(s: Any) -> Any:
        e = (s - s.max()).exp()
        return e / (e.sum() + table.shape[0])

    q, k, v = inputs(5, 17)
    captures = attention(q, k, v, row=row, return_partial=True).captures
    assert [x.data_ptr() for x in captures if isinstance(x, torch.Tensor)] == [table.data_ptr()]


def test_only_so_many_forms_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_form, "_FORMS", {})
    monkeypatch.setattr(partial_form, "_LIMIT", 3)
    monkeypatch.setattr(partial_form, "_read", lambda traced: [traced.text])
    traces: list[Any] = [types.SimpleNamespace(text=str(number), packed=False) for number in range(10)]
    for trace in traces:
        found = partial_form.form_of(trace)
        assert found == [trace.text] and partial_form.form_of(trace) is found
        assert len(partial_form._FORMS) <= 3


def test_rearranged_rows() -> None:
    """A prefix that requests share, whose queries are rows of one batch entry there."""
    q, k, v = inputs(1, 17)
    prefix_k, prefix_v = torch.randn(2, 1, 2, 127, 16)
    prefix = attention(q.transpose(0, 2), prefix_k, prefix_v, return_partial=True)
    own = attention(q, k, v, return_partial=True, kv_offset=127)
    o = merge(own, prefix.apply(lambda x: x.transpose(0, 2))).finalize()
    everything = [torch.cat([a.expand(2, -1, -1, -1), b], 2) for a, b in ((prefix_k, k), (prefix_v, v))]
    torch.testing.assert_close(o, attention(q, everything[0], everything[1]), atol=1e-5, rtol=1e-5)


def test_packed_sequences() -> None:
    offsets = torch.tensor([0, 1, 1, 18], dtype=torch.int32)
    q, k, v = torch.randn(20, 4, 16), torch.randn(18, 2, 16), torch.randn(18, 2, 16)
    prefix_k, prefix_v = torch.randn(2, 1, 64, 2, 16)
    mask = attn_mlir.masks.causal("bottom_right")
    own = attn_mlir.attention_varlen(q, k, v, offsets, mask_mod=mask, return_partial=True, kv_offset=64)
    prefix = attention(q[None], prefix_k, prefix_v, layout="bshd", return_partial=True)
    o = merge(own, prefix).finalize()
    assert o.shape == q.shape
    for a, b in ((0, 1), (1, 18)):
        keys, values = (torch.cat([x[0], y[a:b]])[None] for x, y in ((prefix_k, k), (prefix_v, v)))
        wanted = attention(q[None, a:b], keys, values, mask_mod=mask, layout="bshd")[0]
        torch.testing.assert_close(o[a:b], wanted, atol=1e-5, rtol=1e-5)
    assert not own.finalize()[18:].any()


def test_captured_state_is_read_at_each_call() -> None:
    q, k, v = inputs(5, 17)
    case = case_of("softmax")
    before = merge(*case.parts(q, k, v, CUTS[17])).finalize()
    case.slopes.mul_(3)
    after = merge(*case.parts(q, k, v, CUTS[17])).finalize()
    assert (after.double() - case.reference(q, k, v)).abs().max() < 1e-5
    assert not torch.equal(before, after)


def test_threads() -> None:
    q, k, v = inputs(17, 127)
    case, found = case_of("softmax"), {}
    wanted = merge(*case.parts(q, k, v, CUTS[127])).finalize()

    def work(number: int) -> None:
        found[number] = merge(*case.parts(q, k, v, CUTS[127])).finalize()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(torch.equal(o, wanted) for o in found.values())


def test_torch_compile() -> None:
    """Partial results come from between two graphs; merging and ending them is part of the second."""
    q, k, v = inputs(17, 127)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        first = attention(q, k[:, :, :50], v[:, :, :50], return_partial=True)
        second = attention(q, k[:, :, 50:], v[:, :, 50:], return_partial=True, kv_offset=50)
        return merge(first, second).finalize() * 2

    compiled = torch.compile(function, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), function(q, k, v))
    torch.testing.assert_close(function(q, k, v), 2 * attention(q, k, v), atol=1e-5, rtol=1e-5)


def test_what_is_refused() -> None:
    q, k, v = inputs(5, 17)

    def temperature(s: Any) -> Any:
        return rows.softmax(s / ((s * s).mean() + 1e-3).sqrt())

    with pytest.raises(UnsupportedError, match=r"more than one pass over them \(.*one more pass"):
        attention(q, k, v, row=temperature, return_partial=True)
    p = attention(q, k, v, return_partial=True)
    with pytest.raises(ArgumentError, match="another row"):
        merge(p, attention(q, k, v, row=two_reductions, return_partial=True))
    with pytest.raises(ArgumentError, match="has shape"):
        merge(p, attention(q[:, :, :2], k, v, return_partial=True))
    with pytest.raises(ArgumentError, match="partial result 2 is on meta, the first one on cpu"):
        merge(p, p.apply(lambda x: x.to("meta"), moves=False))
    with pytest.raises(ArgumentError, match="one or more partial results"):
        merge(p, p.finalize())
    with pytest.raises(ArgumentError, match="return_lse=True"):
        _ = p.lse
    with pytest.raises(ArgumentError, match="kv_len is 3"):
        attention(q, k, v, return_partial=True, kv_len=3)
    with pytest.raises(ArgumentError, match="kv_offset must be an integer of 0 or more"):
        attention(q, k, v, return_partial=True, kv_offset=-1)
    with pytest.raises(ArgumentError, match="are for partial results"):
        attention(q, k, v, kv_offset=3)
    with pytest.raises(UnsupportedError, match="the row gives 2 weights"):
        attention(q, k, v, return_partial=True, row=lambda s: (rows.softmax(s), s.sigmoid()))
    with pytest.raises(UnsupportedError, match="dropout"):
        attention(q, k, v, return_partial=True, dropout_p=0.5)


def test_positions_are_found_by_their_place() -> None:
    """Users call the parameters of their functions as they like."""
    q, k, v = (torch.randn(1, 2, n, 16, dtype=torch.float64) for n in (5, 33, 33))

    def mask(x: Any, y: Any, kv_idx: Any, q_idx: Any) -> Any:  # a query's position, then a key's
        return 6 * kv_idx + 3 >= q_idx

    def row(s: Any, x: Any, y: Any, i: Any, j: Any) -> Any:
        e = torch.exp(s - s.max()) * (1 + j % 3 + i)
        return e / e.sum()

    def double(x: Any, first: Any, second: Any, place: Any, channel: Any) -> Any:
        return x * (1 + 0.1 * place)

    functions = {"score_mod": lambda s, x, y, i, j: s - 0.1 * abs(i - j), "mask_mod": mask, "key_mod": double, "value_mod": double}
    parts = []
    for a, b in ((0, 17), (17, 33)):
        options = {"row": row, "return_partial": True, "kv_offset": a, "kv_len": 33}
        parts.append(attention(q, k[:, :, a:b], v[:, :, a:b], **options, **functions))
    assert (merge(*parts).finalize() - attention(q, k, v, row=row, **functions)).abs().max() < 1e-12


END = {
    "length": lambda s: torch.sigmoid(s) / attn_mlir.kv_len(),
    "sequence": lambda s, b, h, i: torch.sigmoid(s) * TWO[b],
    "position": lambda s, b, h, i: torch.sigmoid(s) * (1 + i % 4),
}
TWO, BYTES, SMALL = torch.tensor([0.5, 2.0]), torch.tensor([100, 3], dtype=torch.int8), torch.tensor([3, 200], dtype=torch.uint8)


@pytest.mark.parametrize("name", END)
def test_ends_of_packed_rows_read_their_sequence(name: str) -> None:
    x, offsets = torch.randn(20, 2, 16), torch.tensor([0, 3, 18], dtype=torch.int32)
    whole = attn_mlir.attention_varlen(x, x, x, offsets, row=END[name])
    part = attn_mlir.attention_varlen(x, x, x, offsets, row=END[name], return_partial=True)
    assert (part.finalize() - whole).abs().max() < 1e-6


@pytest.mark.parametrize("factor", [lambda h: BYTES[h] * 3, lambda h: SMALL[h] - 5, lambda h: SMALL[h] + SMALL[h]])
def test_ends_compute_integers_in_64_bits(factor: Any) -> None:
    q, k = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 9, 16)
    row = lambda s, b, h, i: torch.sigmoid(s) * factor(h)  # noqa: E731
    part = attention(q, k, k, row=row, return_partial=True)
    assert (part.finalize() - attention(q, k, k, row=row)).abs().max() < 1e-3


def test_rows_without_keys_have_finite_gradients() -> None:
    """The formula gives 0 there by itself, but its derivative is no number."""
    q, k = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 9, 16)
    sink = torch.randn(2, requires_grad=True)

    def row(s: Any, b: Any, h: Any, i: Any) -> Any:
        e = torch.exp(s - s.max())
        return e / (e.sum() + torch.exp(sink[h].tanh() - s.max()))

    options = {"row": row, "mask_mod": lambda b, h, i, j: (j >= 4) & (i != 3)}
    parts = [attention(q, k[:, :, a:b], k[:, :, a:b], return_partial=True, kv_offset=a, kv_len=9, **options) for a, b in ((0, 4), (4, 9))]
    (merged,) = torch.autograd.grad(merge(*parts).finalize().square().sum(), sink)
    (whole,) = torch.autograd.grad(attention(q, k, k, **options).square().sum(), sink)
    assert (merged - whole).abs().max() < 1e-5


def test_copies_are_partial_results_and_pickles_say_what_to_do() -> None:
    q, k = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 9, 16)
    part = attention(q, k, k, return_partial=True)
    copied = copy.deepcopy(part)
    assert copied.accumulators[0] is not part.accumulators[0]
    torch.testing.assert_close(merge(copied, part.apply(torch.zeros_like)).finalize(), merge(part, part.apply(torch.zeros_like)).finalize())
    with pytest.raises(TypeError, match=r"send accumulators and states"):
        pickle.dumps(part)
