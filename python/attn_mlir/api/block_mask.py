"""`create_block_mask`: a mask function with the sizes it is meant for; its block pattern is computed only when looked at."""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from attn_mlir.api.makers import packed, unpacked
from attn_mlir.api.mask_strings import parse
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.sizes import known

Mask = Callable[..., Any]
BLOCK_SIZE = 128


class BlockMask:
    """A mask for given sizes. It is passed on as `block_mask=`, where the compiler works with the mask function itself."""

    def __init__(self, mask_mod: Mask, sizes: tuple[int, int, int, int], block: tuple[int, int], device: torch.device) -> None:
        self.mask_mod = mask_mod
        self.sizes = sizes
        """B, H, queries and keys; B and H may be 1 for any number."""
        self.block = block
        self.device = device
        self._table: torch.Tensor | None = None

    @property
    def shape(self) -> torch.Size:
        """That of `to_dense()`."""
        b, h, queries, keys = self.sizes
        return torch.Size((b, h, -(-queries // self.block[0]), -(-keys // self.block[1])))

    def to_dense(self) -> torch.Tensor:
        """int8 [B, H, blocks of queries, blocks of keys]: 1 where any position of the block is kept."""
        return torch.stack([torch.stack([self._pattern(b, h) for h in range(self.sizes[1])]) for b in range(self.sizes[0])])

    def table(self, device: torch.device) -> torch.Tensor:
        """What `to_dense()` gave when this was first called: who passes a block mask with a call means its blocks, not the function."""
        if self._table is None:
            self._table = self.to_dense()
        if self._table.device != device:
            self._table = self._table.to(device)
        return self._table

    def sparsity(self) -> float:
        """The percentage of blocks that are skipped."""
        return 100.0 * (1.0 - self.to_dense().float().mean().item())

    def _pattern(self, b: int, h: int) -> torch.Tensor:
        _, _, queries, keys = self.sizes
        rows, columns = self.block
        kv_idx = torch.arange(keys, device=self.device)
        pattern = torch.zeros(self.shape[2:], dtype=torch.int8, device=self.device)
        at = [torch.tensor(i, device=self.device) for i in (b, h)]
        padding = (0, self.shape[3] * columns - keys)
        for block in range(self.shape[2]):
            # One row of blocks at a time: memory grows with the number of keys, not with its product with the queries.
            q_idx = torch.arange(block * rows, min((block + 1) * rows, queries), device=self.device)[:, None]
            with self._sizes_known():
                kept = self.mask_mod(*at, q_idx, kv_idx)
            kept = torch.as_tensor(kept, device=self.device).bool().broadcast_to(q_idx.numel(), keys)
            some = torch.nn.functional.pad(kept.any(dim=0), padding)
            pattern[block] = some.view(-1, columns).any(dim=1)
        return pattern

    def _sizes_known(self) -> AbstractContextManager[None]:
        """For mask functions that ask for them. One head stands for any number, which is not known then."""
        _, heads, queries, keys = self.sizes
        return known(q_len=queries, kv_len=keys, **({"num_heads": heads} if heads > 1 else {}))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "mask_mod": packed(self.mask_mod)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, mask_mod=unpacked(state["mask_mod"]))

    def __repr__(self) -> str:
        b, h, queries, keys = self.sizes
        return f"BlockMask({getattr(self.mask_mod, '__name__', 'mask')}, B={b}, H={h}, {queries} queries, {keys} keys, block={self.block})"


def create_block_mask(
    mask_mod: Mask | str,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = "cpu",
    Q_BLOCK_SIZE: int | None = None,
    KV_BLOCK_SIZE: int | None = None,
) -> BlockMask:
    """The block mask of mask_mod(b, h, q_idx, kv_idx) for B batches, H heads, Q_LEN queries and KV_LEN keys.

    mask_mod may be a string as `masks.parse` takes it. B and H may be None, or 1, for any number.
    Nothing is evaluated here; `to_dense()` gives the int8 pattern, 128 x 128 by default.
    """
    if isinstance(mask_mod, str):
        mask_mod = parse(mask_mod)
    if not callable(mask_mod):
        raise ArgumentError(f"create_block_mask takes a mask function of (b, h, q_idx, kv_idx), got {type(mask_mod).__name__}")
    try:
        inspect.signature(mask_mod).bind(*range(4))
    except TypeError:
        raise ArgumentError("create_block_mask takes a mask function of four indices: mask(b, h, q_idx, kv_idx)") from None
    except ValueError:
        pass  # a builtin without a signature
    block = (BLOCK_SIZE if Q_BLOCK_SIZE is None else Q_BLOCK_SIZE, BLOCK_SIZE if KV_BLOCK_SIZE is None else KV_BLOCK_SIZE)
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    named = zip(("B", "H", "Q_LEN", "KV_LEN", "Q_BLOCK_SIZE", "KV_BLOCK_SIZE"), (*sizes, *block), strict=True)
    for name, size in named:
        if not isinstance(size, int) or isinstance(size, bool) or size < (0 if name.endswith("LEN") else 1):
            raise ArgumentError(f"create_block_mask: {name} must be a positive integer, got {size!r}")
    return BlockMask(mask_mod, sizes, block, torch.device(device))


def create_mask(mask_mod: Mask | str, B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = "cpu") -> torch.Tensor:
    """The mask itself, bool [B, H, Q_LEN, KV_LEN]: for comparing, since it takes as much memory as all scores."""
    mask = create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN, device)
    sizes = mask.sizes
    ranges = [torch.arange(size, device=device) for size in sizes]
    grid = [indices.view(*(-1 if i == axis else 1 for i in range(4))) for axis, indices in enumerate(ranges)]
    with mask._sizes_known():
        kept = mask.mask_mod(*grid)
    return torch.as_tensor(kept, device=device).bool().broadcast_to(sizes).contiguous()
