"""MLA, multi-head latent attention: all heads read one latent vector for each position, as key and as value.

DeepSeek-AI, DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model, arXiv 2405.04434. This is the absorbed
form that decoding runs: q is in the latent space already; the last ROPE channels of the latents are rotary keys and no values.

    o_i = softmax_j(q_i . c_j scale) c_j[: -ROPE]    over the keys  j <= i + Skv - Sq
"""

import torch
from _common import Sizes, Variant, positions, scores, softmax, weigh

from attn_mlir import attention, masks

ROPE = 8


def run(q, latent):
    c = latent[:, None]  # one head for all
    return attention(q, c, c[..., :-ROPE], mask_mod="b")


def reference(q, latent):
    c = latent[:, None]
    s = scores(q, c)
    i, j = positions(s)
    return weigh(softmax(s, j <= i + len(j) - len(i)), c[..., :-ROPE])


def inputs(n: Sizes):
    channels = 2 * n.dim + ROPE
    return {"q": torch.randn(n.batch, n.heads, min(n.length, 19), channels), "latent": torch.randn(n.batch, n.length, channels)}


variant = Variant(run, reference, inputs, mask=lambda **_: masks.causal("bottom_right"))
