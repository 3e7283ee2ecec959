"""QK-norm: queries and keys are RMS-normalised with learned weights, inside of the kernel.

Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters, arXiv 2302.05442; with RMS norms as in Qwen 3 (arXiv 2505.09388).

    o_i = softmax_j(a_i . b_j / sqrt(D)) v_j    over the keys  j <= i,    a = wq q / rms(q),  b = wk k / rms(k)
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention


def rms_norm(x, weight):
    norm = torch.rsqrt(x.square().mean(-1) + 1e-6)
    return lambda element, b, h, idx, d: element * norm[b, h, idx] * weight[d]


def run(q, k, v, wq, wk):
    return attention(q, k, v, query_mod=rms_norm(q, wq), key_mod=rms_norm(k, wk), mask_mod="t")


def reference(q, k, v, wq, wk):
    dim = q.shape[-1:]
    s = scores(torch.nn.functional.rms_norm(q, dim, wq, 1e-6), torch.nn.functional.rms_norm(k, dim, wk, 1e-6))
    i, j = positions(s)
    return weigh(softmax(s, j <= i), v)


def inputs(n: Sizes):
    return qkv(n) | {"wq": 1 + 0.1 * torch.randn(n.dim), "wk": 1 + 0.1 * torch.randn(n.dim)}


variant = Variant(run, reference, inputs)
