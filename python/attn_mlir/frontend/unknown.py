"""What to say of functions that cannot be traced."""

import difflib
from collections.abc import Iterable

PAGE = "docs/vocabulary.md lists what there is"
LENGTHS = "attn_mlir.q_len() and attn_mlir.kv_len() give the lengths"
ROW = (
    "keys come block by block, in no fixed order: reduce the row, as in s.max(), s.sum() or s.mean(), or give a position its own "
    "score in score_mod, which gets kv_idx"
)
_SCANS = frozenset(
    "topk sort msort argsort cumsum cumprod cummax cummin logcumsumexp cumulative_trapezoid flip fliplr roll diff median nanmedian mode "
    "quantile nanquantile kthvalue argmax argmin unique unique_consecutive searchsorted bucketize histc gather take scatter".split()
)
_PRODUCTS = frozenset("matmul mm bmm dot einsum outer inner tensordot conv1d linear bilinear".split())
_SHAPES = frozenset("view reshape transpose permute expand repeat flatten unbind split chunk cat stack narrow select tile t".split())
# Names of operators, which nobody means to call.
_UNSPOKEN = frozenset("or and xor mod truediv floordiv lshift rshift invert positive tensor scalar_tensor rsub".split())


def advice(name: str, names: Iterable[str]) -> str:
    """What to write instead of the function `name`, where there are `names`."""
    if name in _SCANS:
        return (
            f"keys come block by block, so nothing that depends on their order or rank, such as {name}, is there; the largest values "
            "come of repeated maxima: m1 = s.max(), m2 = torch.where(s < m1, s, -1e30).max(), ...; order by position belongs "
            "into score_mod or mask_mod, which get kv_idx"
        )
    if name in _PRODUCTS:
        return "a function sees one number at a time: compute products of tensors before the call, and index the result"
    if name in _SHAPES:
        return "a traced value has no dimensions to change: leave it out, and index captured tensors with b, h, q_idx, kv_idx"
    similar = difflib.get_close_matches(name, [known for known in names if known not in _UNSPOKEN], n=2, cutoff=0.82)
    return PAGE + (f"; did you mean {' or '.join(similar)}?" if similar else "; or compose it of arithmetic, torch.where, torch.exp, ...")
