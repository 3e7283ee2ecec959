"""What attention_varlen refuses, with messages that name the argument, and what it takes besides plain tensors."""

from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import ArgumentError, TraceError, UnsupportedError, attention_varlen, driver
from varlen_cases import offsets

Q = torch.randn(10, 4, 16)
K = torch.randn(12, 2, 16)
CU_Q, CU_K = offsets([4, 6]), offsets([5, 7])


def run(**changed: Any) -> Any:
    given = {"q": Q, "k": K, "v": K, "cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K, **changed}
    return attention_varlen(**given)


def ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cu_seqlens_q": ints(1, 4, 10)}, "cu_seqlens_q must start at 0, it starts at 1"),
        ({"cu_seqlens_k": ints(0, 5, 13)}, "cu_seqlens_k ends at 13, beyond the 12 keys that there are"),
        ({"cu_seqlens_q": ints(0, 4, 11)}, "cu_seqlens_q ends at 11, beyond the 10 queries that there are"),
        ({"cu_seqlens_q": ints(0, 7, 4)}, "cu_seqlens_q must not fall: sequence 1 would have -3 queries"),
        (
            {"cu_seqlens_k": ints(0, 14, 5, 12), "cu_seqlens_q": ints(0, 1, 2, 3)},
            "cu_seqlens_k must not fall: sequence 1 would have -9 keys",
        ),
        ({"cu_seqlens_q": CU_Q.long()}, "cu_seqlens_q must be an int32 tensor, got a tensor of torch.int64"),
        ({"cu_seqlens_k": [0, 5, 12]}, "cu_seqlens_k must be an int32 tensor, got list"),
        ({"cu_seqlens_q": ints()}, r"cu_seqlens_q must be \[sequences \+ 1\], got shape \[0\]"),
        ({"cu_seqlens_q": CU_Q[None]}, r"cu_seqlens_q must be \[sequences \+ 1\], got shape \[1, 3\]"),
        ({"cu_seqlens_k": CU_K.to_sparse()}, "cu_seqlens_k must be dense, got layout torch.sparse_coo"),
        ({"cu_seqlens_k": ints(0, 12)}, "cu_seqlens_k has 1 sequences but cu_seqlens_q has 2"),
        ({"cu_seqlens_q": CU_Q.to("meta")}, "cu_seqlens_q is on meta but q is on cpu"),
        ({"seqused_k": ints(5)}, "seqused_k is for 1 sequences but cu_seqlens_q has 2"),
        ({"seqused_k": ints(6, 7)}, r"seqused_k\[0\] is 6, but cu_seqlens_k has 5 keys for this sequence"),
        ({"seqused_k": ints(5, 8)}, "cu_seqlens_k ends at 13, beyond the 12 keys"),
        ({"seqused_k": ints(5, -1)}, "sequence 1 would have -1 keys .or seqused_k is negative"),
        ({"seqused_k": torch.ones(2)}, "seqused_k must be an int32 tensor, got a tensor of torch.float32"),
        ({"q": Q[None]}, r"q must have 3 dimensions, \[positions of all sequences, head, dim\], got shape \[1, 10, 4, 16\]"),
        ({"k": K.double()}, "k has dtype torch.float64 but q has torch.float32"),
        ({"v": K[:11]}, "v has 11 positions but k has 12"),
        ({"q": Q[:, :3]}, "q has 3 heads, which is no multiple of the 2 heads of k and v"),
        ({"max_q": 5}, "max_q is 5, but a sequence has 6 positions"),
        ({"max_k": 6}, "max_k is 6, but a sequence has 7 positions"),
        ({"max_k": 7.0}, "max_k must be an integer or None, got float"),
        ({"out": torch.empty(10, 4, 8)}, r"out must be \[10, 4, 16\] of torch.float32 on cpu, got \[10, 4, 8\]"),
        ({"out": torch.empty(1, 4, 16).expand(10, 4, 16)}, "out has one place in memory for several elements"),
        ({"q": Q.clone().requires_grad_(), "out": torch.empty(10, 4, 16)}, "out is written where nothing needs a gradient"),
        ({"mask_mod": attn_mlir.create_block_mask(lambda b, h, i, j: i >= j, None, None, 10, 12)}, "mask_mod is a block mask"),
        ({"dropout_p": 1.5}, "dropout_p"),
        ({"causal": True}, "causal"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentError, TypeError), match=message):
        run(**changed)


def test_largest_lengths_may_be_given() -> None:
    assert torch.equal(run(), run(max_q=6, max_k=100))


def test_backward_has_the_offsets_of_the_forward_pass() -> None:
    """Callers reuse them for other sequences meanwhile, also where torch does not see it."""
    q, k = Q.clone().requires_grad_(), K.clone().requires_grad_()
    named = {"cu_seqlens_q": CU_Q.clone(), "cu_seqlens_k": CU_K.clone(), "seqused_k": ints(4, 7)}
    o, wanted = (run(q=q, k=k, v=k, **named) for _ in range(2))
    expected = torch.autograd.grad(wanted.square().sum(), (q, k))
    for tensor in named.values():
        tensor.numpy()[:] = 1_000_000
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(o.square().sum(), (q, k)), expected, strict=True))


def test_keys_have_the_offsets_of_queries_by_default() -> None:
    assert torch.equal(attention_varlen(Q, Q, Q, CU_Q), attention_varlen(Q, Q, Q, CU_Q, CU_Q.clone()))


def test_captured_tables_must_be_long_enough_for_each_sequence() -> None:
    """Where the length of the sequence says what is read, that of each one counts, not the range of all."""
    table = torch.randn(7)

    def from_the_end(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[attn_mlir.kv_len() - 1 - kv_idx]

    run(score_mod=from_the_end)
    table = torch.randn(6)
    with pytest.raises(ArgumentError, match="table"):
        run(score_mod=from_the_end)
    of_sequence = torch.randn(1)
    with pytest.raises(ArgumentError, match="of_sequence"):
        run(score_mod=lambda score, b, h, q_idx, kv_idx: score + of_sequence[b])


def test_other_devices_say_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match="take 16-bit inputs"):
        run(device="hip-emulated")


def test_functions_are_traced_as_those_of_attention() -> None:
    with pytest.raises(TraceError):
        run(score_mod=lambda score, b, h, q_idx, kv_idx: score if q_idx > 3 else 0.0)


def test_kernels_by_themselves_make_no_lists_of_work() -> None:
    """What compiles one kernel, as tuners do, refuses packed tensors: it would read where nothing was listed."""
    source = (Path(__file__).parents[1] / "Inputs" / "packed-causal.mlir").read_text()
    with pytest.raises(UnsupportedError, match="packed sequences have lists of work"):
        driver.compile(source, "cpu")


def test_the_sequence_is_found_by_its_place() -> None:
    """Users call the parameters of their functions as they like: `b` may be the head."""

    def score(s: Any, batch: Any, b: Any, i: Any, j: Any) -> Any:
        return s * (1 + 0.1 * attn_mlir.kv_len()) + 0.3 * b + j - (attn_mlir.kv_len() - attn_mlir.q_len() + i)

    x, offsets = torch.randn(30, 2, 16), torch.tensor([0, 7, 7, 30], dtype=torch.int32)
    o = attn_mlir.attention_varlen(x, x, x, offsets, score_mod=score)
    for begin, end in ((0, 7), (7, 30)):
        each = x[begin:end].transpose(0, 1)[None]
        alone = attn_mlir.attention(each, each, each, score_mod=score)[0].transpose(0, 1)
        assert torch.equal(o[begin:end], alone)
