"""ReLU attention: a power of the positive scores, divided by the number of keys.

Wortsman et al., Replacing softmax with ReLU in Vision Transformers, arXiv 2309.08586, which compares such powers.

    p_ij = relu(s_ij)^2 / n
"""

import torch
from _common import Variant, scores, weigh

from attn_mlir import attention


def relu_squared(s):
    return torch.relu(s) ** 2 / s.numel()


def run(q, k, v):
    return attention(q, k, v, row=relu_squared)


def reference(q, k, v):
    s = scores(q, k)
    return weigh(torch.relu(s) ** 2 / s.shape[-1], v)


variant = Variant(run, reference, row=relu_squared)
