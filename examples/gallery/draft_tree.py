"""Tree attention: the tokens of a tree of drafts are verified in one step.

Miao et al., SpecInfer: Accelerating Generative LLM Serving with Speculative Inference and Token Tree Verification, arXiv 2305.09781.

    o_i = softmax_j(s_ij) v_j    over the context and the ancestors of node i, itself included
"""

import torch
from _common import Sizes, Variant, scores, softmax, weigh

from attn_mlir import attention


def ancestors(parent):
    """[nodes, nodes], true where the second is the first or above it; parent[n] < n, and -1 for roots."""
    above = torch.eye(len(parent), dtype=torch.bool)
    for node, up in enumerate(parent.tolist()):
        if up >= 0:
            above[node] |= above[up]
    return above.to(parent.device)


def drafts(above, context):
    return lambda b, h, q_idx, kv_idx: (kv_idx < context) | above[q_idx, (kv_idx - context).clamp(0, len(above) - 1)]


def run(q, k, v, parent):
    return attention(q, k, v, mask_mod=drafts(ancestors(parent), k.shape[2] - q.shape[2]))


def reference(q, k, v, parent):
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    context = k.shape[2] - q.shape[2]
    for node in range(len(parent)):
        chain = [node]
        while parent[chain[-1]] >= 0:
            chain.append(int(parent[chain[-1]]))
        seen[node, context:] = torch.isin(torch.arange(len(parent)), torch.tensor(chain))
    return weigh(softmax(scores(q, k), seen.to(q.device)), v)


def inputs(n: Sizes):
    nodes = 21  # 4 drafts of every node of a level: 1 + 4 + 16
    q = torch.randn(n.batch, n.heads, nodes, n.dim)
    k, v = torch.randn(2, n.batch, n.kv_heads, n.length + nodes, n.dim)
    return {"q": q, "k": k, "v": v, "parent": (torch.arange(nodes) + 3) // 4 - 1}


def given(q, k, parent, **_):
    return drafts(ancestors(parent), k.shape[2] - q.shape[2])


variant = Variant(run, reference, inputs, mask=given, flex=lambda **x: {"mask_mod": given(**x)})
