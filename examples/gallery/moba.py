"""MoBA, mixture of block attention: every query chooses the blocks of keys whose mean fits best.

Lu et al., MoBA: Mixture of Block Attention for Long-Context LLMs, arXiv 2502.13189.

    o_i = softmax_j(s_ij) v_j    over the keys  j <= i  of the TOP chosen blocks:
                                 i's own, and the earlier ones with the largest q_i . mean(k of the block)
"""

import torch
from _common import Variant, positions, scores, softmax, weigh

from attn_mlir import attention

BLOCK, TOP = 16, 3


def choose(q, k):
    """bool [B, heads, Sq, blocks], chosen in float32 at least; the choice has no gradient."""
    q, k = (x.detach().to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k))
    means = torch.stack([block.mean(2) for block in k.split(BLOCK, 2)], 2)
    fit = q @ means.repeat_interleave(q.shape[1] // k.shape[1], 1).mT
    own = torch.arange(q.shape[2], device=q.device)[:, None] // BLOCK
    block = torch.arange(fit.shape[3], device=q.device)
    fit = fit.masked_fill(block > own, -torch.inf).masked_fill(block == own, torch.inf)
    best = fit.topk(min(TOP, fit.shape[3]), -1).indices
    return torch.zeros_like(fit, dtype=torch.bool).scatter_(-1, best, True)


def moba(chosen):
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & chosen[b, h, q_idx, kv_idx // BLOCK]


def run(q, k, v):
    return attention(q, k, v, mask_mod=moba(choose(q, k)))


def reference(q, k, v):
    s = scores(q, k)
    i, j = positions(s)
    means = torch.stack([block.mean(2) for block in k.split(BLOCK, 2)], 2)
    fit = scores(q, means).masked_fill(j[: means.shape[2]] >= i // BLOCK, -torch.inf)
    rank = fit.argsort(-1, descending=True).argsort(-1)
    past = (rank < TOP - 1).repeat_interleave(BLOCK, -1)[..., : len(j)]
    return weigh(softmax(s, (j <= i) & (past | (i // BLOCK == j // BLOCK))), v)


def given(q, k, **_):
    return moba(choose(q, k))


variant = Variant(run, reference, mask=given, flex=lambda **x: {"mask_mod": given(**x)})
