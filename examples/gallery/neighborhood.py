"""Neighborhood attention: pixels of an image attend to the K x K pixels around them.

Hassani et al., Neighborhood Attention Transformer, arXiv 2204.07143. At borders the window is moved inside, so that every query has K x K
keys.

    o_i = softmax_j(s_ij) v_j    over the keys  |row_j - c(row_i)| <= K // 2  and  |column_j - c(column_i)| <= K // 2
"""

import torch
from _common import Sizes, Variant, positions, scores, softmax, weigh

from attn_mlir import attention

WIDTH, K = 16, 7


def neighborhood(height):
    def mask(b, h, q_idx, kv_idx):
        row = (q_idx // WIDTH).clamp(K // 2, height - 1 - K // 2)
        column = (q_idx % WIDTH).clamp(K // 2, WIDTH - 1 - K // 2)
        return (abs(kv_idx // WIDTH - row) <= K // 2) & (abs(kv_idx % WIDTH - column) <= K // 2)

    return mask


def run(q, k, v):
    return attention(q, k, v, mask_mod=neighborhood(q.shape[2] // WIDTH))


def reference(q, k, v):
    s = scores(q, k)
    i, j = positions(s)

    def near(i, j, size):
        start = (i - K // 2).clamp(0, size - K)
        return (j >= start) & (j < start + K)

    return weigh(softmax(s, near(i // WIDTH, j // WIDTH, len(j) // WIDTH) & near(i % WIDTH, j % WIDTH, WIDTH)), v)


def inputs(n: Sizes):
    rows = max(n.length // WIDTH, K)
    q, k, v = (torch.randn(n.batch, heads, rows * WIDTH, n.dim) for heads in (n.heads, n.kv_heads, n.kv_heads))
    return {"q": q, "k": k, "v": v}


def given(q, **_):
    return neighborhood(q.shape[2] // WIDTH)


variant = Variant(run, reference, inputs, mask=given, flex=lambda **x: {"mask_mod": given(**x)})
