"""ALiBi: scores fall with the distance, at a slope for each head, which is learned here.

Press et al., Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation, arXiv 2108.12409.

    o_i = softmax_j(s_ij - slope_h (i - j)) v_j    over the keys  j <= i
"""

from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention, mods


def alibi(slopes):
    return lambda score, b, h, q_idx, kv_idx: score - slopes[h] * (q_idx - kv_idx)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def run(q, k, v, slopes):
    return attention(q, k, v, score_mod=alibi(slopes), mask_mod=causal)


def reference(q, k, v, slopes):
    s = scores(q, k)
    i, j = positions(s)
    return weigh(softmax(s - slopes[:, None, None] * (i - j), j <= i), v)


def inputs(n: Sizes):
    return qkv(n) | {"slopes": mods.alibi_slopes(n.heads)}


variant = Variant(run, reference, inputs, flex=lambda slopes, **_: {"score_mod": alibi(slopes), "mask_mod": causal})
