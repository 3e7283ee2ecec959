"""Packed documents: several texts in one sequence, which do not see each other.

Krell et al., Efficient Sequence Packing without Cross-contamination, arXiv 2107.02027.

    o_i = softmax_j(s_ij) v_j    over the keys  j <= i  with  document_j = document_i
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention


def packed(document):
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (document[q_idx] == document[kv_idx])


def run(q, k, v, document):
    return attention(q, k, v, mask_mod=packed(document))


def reference(q, k, v, document):
    s = scores(q, k)
    i, j = positions(s)
    return weigh(softmax(s, (j <= i) & (document[:, None] == document)), v)


def inputs(n: Sizes):
    return qkv(n) | {"document": torch.randint(0, 6, [n.length]).sort().values}


def given(document, **_):
    return packed(document)


variant = Variant(run, reference, inputs, mask=given, flex=lambda **x: {"mask_mod": given(**x)})
