"""The masks that attention libraries ship, at sizes that leave partial blocks everywhere."""

from typing import Any

import numpy as np

from masks import MaskFn

WIDTH, HEIGHT, TILE_W, TILE_H = 16, 16, 8, 4


def _documents(length: int) -> tuple[Any, Any]:
    """(document of each position, first position of its document)."""
    cuts = np.array([0, 11, 12, 40, 77, 100, 150, 171])
    documents = np.searchsorted(cuts, np.arange(length), side="right") - 1
    return documents, cuts[documents]


def _xy(i: Any) -> tuple[Any, Any]:
    return i // WIDTH, i % WIDTH


def _tiled_xy(i: Any) -> tuple[Any, Any]:
    tile, inner = i // (TILE_W * TILE_H), i % (TILE_W * TILE_H)
    return tile % (WIDTH // TILE_W) * TILE_W + inner % TILE_W, tile // (WIDTH // TILE_W) * TILE_H + inner // TILE_W


def _natten(to_xy: Any) -> MaskFn:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        (qy, qx), (ky, kx) = to_xy(q), to_xy(k)
        return (abs(qy.clip(3, 12) - ky) <= 3) & (abs(qx.clip(3, 12) - kx) <= 3)

    return mask


def _block_diffusion(n: int, size: int) -> MaskFn:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        noisy_q, noisy_k, block_q, block_k = q < n, k < n, (q % n) // size, (k % n) // size
        diagonal = (block_q == block_k) & ((noisy_q & noisy_k) | (~noisy_q & ~noisy_k))
        return diagonal | ((block_q > block_k) & noisy_q & ~noisy_k) | ((block_q >= block_k) & ~noisy_q & ~noisy_k)

    return mask


def _shared_prefix(b: Any, h: Any, q: Any, k: Any, start: Any, prefix: Any, prefix_end: Any, shares: Any) -> Any:
    return ((k >= start[q]) & (q >= k)) | ((shares[q] > 0) & (k >= prefix[q]) & (k < prefix_end[q]))


def known_masks(length: int) -> dict[str, tuple[MaskFn, list[Any]]]:
    """name -> (mask, captures)."""
    documents, start = _documents(length)
    special = np.zeros(length, np.int32)
    special[[0, 3, length // 2]] = 1
    prefix = start[np.maximum(documents // 3 * 3, 0) * 0]
    shares = (documents % 3 != 0).astype(np.int64)
    return {
        "causal": (lambda b, h, q, k: q >= k, []),
        "causal bottom right": (lambda b, h, q, k, offset: q + offset >= k, [9]),
        "sliding window": (lambda b, h, q, k, w: (q - k <= w) & (q >= k), [31]),
        "two-sided window": (lambda b, h, q, k: abs(q - k) <= 25, []),
        "dilated": (lambda b, h, q, k: (abs(q - k) <= 40) & (abs(q - k) % 2 == 0), []),
        "global and sliding": (lambda b, h, q, k, special: (abs(q - k) <= 12) | (special[q] > 0) | (special[k] > 0), [special]),
        "prefix": (lambda b, h, q, k, n: (k < n) | (q >= k), [50]),
        "documents": (lambda b, h, q, k, doc: (doc[q] == doc[k]) & (q >= k), [documents]),
        "packed documents": (lambda b, h, q, k, start: (k >= start[q]) & (q >= k), [start]),
        "shared prefix": (_shared_prefix, [start, prefix, prefix + 12, shares]),
        "batchified": (lambda b, h, q, k: (q // 64 == k // 64) & (q % 64 >= k % 64), []),
        "block diagonal": (lambda b, h, q, k: q // 48 == k // 48, []),
        "chunked causal": (lambda b, h, q, k: (q // 50 == k // 50) & (q >= k), []),
        "mini causal": (lambda b, h, q, k: q % 64 >= k % 64, []),
        "block diffusion": (_block_diffusion(80, 16), []),
        "draft training": (lambda b, h, q, k: (k < 96) | ((k >= 96) & (q // 16 == (k - 96) // 16) & ((k - 96) % 16 <= q % 16)), []),
        "spatial video": (lambda b, h, q, k: (k < 22) | (q < 22) | (abs(q - k) < 30), []),
        "temporal video": (lambda b, h, q, k: (k < 22) | (q < 22) | (abs((q - 22) % 35 - (k - 22) % 35) < 6), []),
        "neighborhood": (_natten(_xy), []),
        "tiled neighborhood": (_natten(_tiled_xy), []),
    }


def runtime_masks() -> dict[str, tuple[MaskFn, list[Any]]]:
    """Masks whose sizes are captured Python ints, and so are only known at run time."""

    def block_diffusion(b: Any, h: Any, q: Any, k: Any, n: Any, size: Any) -> Any:
        return _block_diffusion(n, size)(b, h, q, k)

    return {
        "batchified": (lambda b, h, q, k, n: (q // n == k // n) & (q % n >= k % n), [64]),
        "block diagonal": (lambda b, h, q, k, n: q // n == k // n, [48]),
        "chunked causal": (lambda b, h, q, k, n: (q // n == k // n) & (q >= k), [50]),
        "shifted blocks": (lambda b, h, q, k, n, m: (q - n) // m >= (k + 3) // m, [30, 20]),
        "dilated": (lambda b, h, q, k, w, n: (abs(q - k) <= w) & (abs(q - k) % n == 0), [40, 2]),
        "block diffusion": (block_diffusion, [80, 16]),
        "temporal video": (lambda b, h, q, k, c, n, w: (k < c) | (q < c) | (abs((q - c) % n - (k - c) % n) < w), [22, 35, 6]),
    }
