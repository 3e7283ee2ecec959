"""StreamingLLM: a sliding window and the first few keys.

Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453.

    o_i = softmax_j(s_ij) v_j    over the keys  i - W < j <= i  and  j < N
"""

from _common import Variant, positions, scores, softmax, weigh

from attn_mlir import attention

WINDOW, SINKS = 64, 4


def streaming(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & ((q_idx - kv_idx < WINDOW) | (kv_idx < SINKS))


def run(q, k, v):
    return attention(q, k, v, mask_mod=streaming)


def reference(q, k, v):
    s = scores(q, k)
    i, j = positions(s)
    return weigh(softmax(s, (j <= i) & ((j > i - WINDOW) | (j < SINKS))), v)


variant = Variant(run, reference, mask=lambda **_: streaming, flex=lambda **_: {"mask_mod": streaming})
