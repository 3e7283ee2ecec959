"""Sigmoid attention: every key on its own, with a learned bias of about -log(keys).

Ramapuram et al., Theory, Analysis, and Best Practices for Sigmoid Self-Attention, arXiv 2409.04431.

    p_ij = 1 / (1 + exp(-(s_ij + bias_h)))    over the keys  j <= i
"""

import math

import torch
from _common import Sizes, Variant, positions, qkv, scores, weigh

from attn_mlir import attention


def sigmoid(bias):
    return lambda s, b, h, q_idx: torch.sigmoid(s + bias[h])


def run(q, k, v, bias):
    return attention(q, k, v, row=sigmoid(bias), mask_mod="t")


def reference(q, k, v, bias):
    s = scores(q, k)
    i, j = positions(s)
    return weigh(torch.sigmoid(s + bias[:, None, None]) * (j <= i), v)


def inputs(n: Sizes):
    return qkv(n) | {"bias": torch.randn(n.heads) - math.log(n.length)}


variant = Variant(run, reference, inputs, row=lambda s: sigmoid(torch.tensor([-math.log(8)]))(s, 0, 0, 0))
