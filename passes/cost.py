"""What an attention and its derivatives cost at least: matrix work for each present pair, memory traffic."""

from collections.abc import Sequence

from attn_mlir.dialects.elements import bits_of
from attn_mlir.mlir import ir


def bytes_of(tensor: ir.Type) -> int:
    """Bytes of one position of a tensor [B, H, S, D]."""
    type_ = ir.RankedTensorType(tensor)
    return type_.shape[3] * bits_of(type_.element_type) // 8


def work(products: Sequence[int], sums: Sequence[int], kv_passes: int = 1) -> str:
    """Products (in every pass) and sums (in the last) of head dimensions, as flops."""
    flops = 2 * (kv_passes * sum(products) + sum(sums))
    counted = f"{len(products)} {'product' if len(products) == 1 else 'products'}, {len(sums)} {'sum' if len(sums) == 1 else 'sums'}"
    return f"{flops} flops of matrix work for each present pair ({counted}, {kv_passes} {'pass' if kv_passes == 1 else 'passes'})"


def traffic(query: int, key: int, rows: int) -> str:
    """Bytes of query positions, of key positions, and numbers of rows, each read or written once."""
    return f"at least B Hq Sq {query + 4 * rows} + B Hkv Skv {key} bytes of memory traffic"
