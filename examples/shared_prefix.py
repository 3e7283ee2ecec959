"""Shared prefixes (cascade): one prompt, many requests, and a row of the user's own. The prefix is read once for all of them.

Every request has a cache of its own after the prefix, of any length. Attention to the prefix takes the queries of all requests as rows of
one batch entry; attention to the caches takes packed sequences, whose keys begin at the end of the prefix. What both give are partial
results: the merge rule of this row was derived, as its online form was.
"""

import time

import torch

import attn_mlir


def relu_normalised(s):
    w = s.max(0.0)
    return w / (w.sum() + 1e-6)


def alibi(score, b, h, q_idx, kv_idx):
    """The query of a request is at its last position."""
    return score - 0.01 * (h + 1) * (attn_mlir.kv_len() - 1 - kv_idx)


def inputs(prefix: int, lengths: list[int], heads: int = 8, kv_heads: int = 2, dim: int = 64) -> tuple[torch.Tensor, ...]:
    """q of one query for each request, k and v of the prefix, k and v of all requests, packed, and their offsets."""
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    q = torch.randn(len(lengths), heads, dim)
    return (q, *torch.randn(2, prefix, kv_heads, dim), *torch.randn(2, sum(lengths), kv_heads, dim), offsets)


def cascade(q, prefix_k, prefix_v, k, v, offsets):
    """One query for each request, [requests, heads, dim]."""
    begin = prefix_k.shape[0]
    of_queries = torch.arange(len(offsets), dtype=torch.int32)
    of_keys = offsets[1:] - offsets[:-1] + begin

    def of_prefix(score, b, h, q_idx, kv_idx):  # row q_idx is the query of request q_idx
        return score - 0.01 * (h + 1) * (of_keys[q_idx] - 1 - kv_idx)

    options = {"row": relu_normalised, "return_partial": True}
    own = attn_mlir.attention_varlen(q, k, v, of_queries, offsets, score_mod=alibi, kv_offset=begin, **options)
    prefix = attn_mlir.attention(q[None], prefix_k[None], prefix_v[None], layout="bshd", score_mod=of_prefix, **options)
    return attn_mlir.merge(own, prefix).finalize()


def one_by_one(q, prefix_k, prefix_v, k, v, offsets):
    """The same with the prefix read for each request."""
    rows = []
    for number, (begin, end) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        keys, values = torch.cat([prefix_k, k[begin:end]]), torch.cat([prefix_v, v[begin:end]])
        one = attn_mlir.attention(
            q[None, number : number + 1], keys[None], values[None], layout="bshd", row=relu_normalised, score_mod=alibi
        )
        rows.append(one[0, 0])
    return torch.stack(rows)


def main() -> None:
    """64 requests after a prefix of 32k keys."""
    given = inputs(32768, [int(n) for n in torch.randint(1, 512, (64,))])
    for name, function in (("merged", cascade), ("one by one", one_by_one)):
        function(*given)
        start = time.perf_counter()
        function(*given)
        print(f"{name}: {time.perf_counter() - start:.3f} s")
    print("largest difference:", (cascade(*given) - one_by_one(*given)).abs().max().item())


if __name__ == "__main__":
    main()
