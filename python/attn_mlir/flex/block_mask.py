"""`BlockMask`: FlexAttention's block-sparse masks. Those of `create_block_mask` are mask functions with sizes; their tables wait.

`BlockMask` is a subclass of torch's, whose methods it inherits, so that either library takes either one's masks.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import BlockMask as TorchBlockMask

from attn_mlir.api.given_masks import Snapshot
from attn_mlir.errors import UnsupportedError
from attn_mlir.flex import blocks

Mask = Callable[..., Any]
_TABLES = {
    "kv_num_blocks": ("partial", 0, False),
    "kv_indices": ("partial", 1, False),
    "full_kv_num_blocks": ("full", 0, False),
    "full_kv_indices": ("full", 1, False),
    "q_num_blocks": ("partial", 0, True),
    "q_indices": ("partial", 1, True),
    "full_q_num_blocks": ("full", 0, True),
    "full_q_indices": ("full", 1, True),
}
"""Which blocks a table is of, its place in `ordered`, and whether by keys."""


def sliced(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Stands for the mask function of a slice, which has none of its own."""
    return torch_flex._sliced_mask_mod_error(b, h, q_idx, kv_idx)


SLICED: Mask = getattr(torch_flex, "_sliced_mask_mod_error", sliced)


class BlockMask(TorchBlockMask):
    """Which blocks of positions a mask keeps, in tables: kv_num_blocks [B, H, rows of blocks] counts the partial blocks of each row,
    kv_indices [B, H, rows, columns] lists them first; full_kv_... those of which every position is kept, where mask_mod is not asked.

    `from_kv_blocks(kv_num_blocks, kv_indices, full_kv_num_blocks=None, full_kv_indices=None, BLOCK_SIZE=128, mask_mod=None,
    seq_lengths=None, compute_q_blocks=True)` makes one of tables. Without mask_mod the tables alone are the mask.
    """

    symbolic = False
    """Whether `mask_mod` alone says what is kept."""

    def __getitem__(self, index: Any) -> "BlockMask":
        """The mask of some batches, heads and rows of blocks; integers keep their dimension. Its mask_mod has to be set."""
        if getattr(self, "dq_kv_order", None) is not None:
            raise UnsupportedError("a BlockMask with a tensor as dq_kv_order cannot be sliced: make one of the slice's tables")
        chosen = index if isinstance(index, tuple) else (index,)
        chosen = (*chosen, *[slice(None)] * 3)[:3]
        counts = self.kv_num_blocks
        places = tuple(_kept(i, size) if isinstance(i, int) else i for i, size in zip(chosen, counts.shape, strict=False))
        kept: list[Any] = [counts[places], self.kv_indices[places]]
        if self.full_kv_num_blocks is not None and self.full_kv_indices is not None:
            kept += [self.full_kv_num_blocks[places], self.full_kv_indices[places]]
        made = BlockMask.from_kv_blocks(
            *kept, BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=SLICED, seq_lengths=self.seq_lengths, compute_q_blocks=self._has_columns()
        )
        made.dq_kv_order_spt = getattr(self, "dq_kv_order_spt", None)
        if getattr(self, "dq_write_order", None) is not None:
            made.dq_write_order, made.dq_write_order_full = write_order(made, made.dq_kv_order_spt)
        return made

    def to(self, device: torch.device | str) -> "BlockMask":
        """The mask with its tables on a device. What mask_mod captures stays where it is."""
        moved: dict[str, Any] = {
            name: None if value is None else value.to(device) for name in self._TENSOR_ATTRS for value in (getattr(self, name),)
        }
        rest: dict[str, Any] = {"dq_kv_order_spt": self.dq_kv_order_spt} if hasattr(self, "dq_kv_order_spt") else {}
        return BlockMask(seq_lengths=self.seq_lengths, **moved, BLOCK_SIZE=self.BLOCK_SIZE, mask_mod=self.mask_mod, **rest)

    def _has_columns(self) -> bool:
        return self.q_indices is not None


def write_order(mask: TorchBlockMask, descending: bool | None) -> tuple[Tensor, Tensor | None]:
    """dq_write_order and dq_write_order_full of torch's FLASH backward, for the tables of a mask."""
    compute: Any = getattr(torch_flex, "_compute_dq_write_order_from_block_mask", None)
    if compute is None:
        raise UnsupportedError("compute_dq_write_order needs a newer torch: it is metadata of torch's kernels, leave it out")
    return compute(mask, dq_kv_order=descending)


def _kept(index: int, size: int) -> slice:
    """The slice of one element that an integer means."""
    return slice(index + size, index + size + 1) if -size <= index < 0 else slice(index, index + 1)


class SymbolicBlockMask(BlockMask):
    """What `create_block_mask` makes: a mask function with sizes. Tables are computed when they are first asked for, and then kept."""

    def __init__(
        self, mask_mod: Mask, sizes: tuple[int, int, int, int], block: tuple[int, int], device: torch.device, separate_full: bool
    ) -> None:
        self.mask_mod = mask_mod
        self.seq_lengths = (sizes[2], sizes[3])
        self.BLOCK_SIZE = block
        self.device = device
        self.batch_heads = (sizes[0], sizes[1])
        self._function, self._lengths, self._separate = mask_mod, (sizes[2], sizes[3]), separate_full
        self._classes: Tensor | None = None
        self._tables: dict[str, Tensor | None] | None = None
        self._made: Snapshot | None = None
        self._replaced = False
        self.dq_write_order: Tensor | None = None
        self.dq_write_order_full: Tensor | None = None
        self.dq_kv_order: Tensor | None = None
        self.dq_kv_order_spt: bool | None = None

    @property
    def symbolic(self) -> bool:  # type: ignore[override]
        """Whether `mask_mod` alone says what is kept: nobody has put another function or other tables into the mask."""
        return self.mask_mod is self._function and not (self._replaced or (self._tables is not None and self._edited()))

    def _edited(self) -> bool:
        """Whether somebody has put other tables into the mask, or changed one in place."""
        if self._replaced or self._tables is None:
            return self._replaced
        if torch.compiler.is_dynamo_compiling():
            return any([table is not None and table._version != 0 for table in self._tables.values()])
        return self._made is not None and not self._made.holds(list(self._tables.values()))

    @property
    def shape(self) -> tuple[int, ...]:
        """B, H, queries and keys."""
        return (*self.batch_heads, *self.seq_lengths)

    def classes(self) -> Tensor:
        """int8 [B, H, blocks of queries, blocks of keys]: 0 for an empty block, 1 for a partial and 2 for a full one."""
        if self._classes is None:
            self._classes = blocks.block_classes(self._function, (*self.batch_heads, *self._lengths), self.BLOCK_SIZE, self.device)
        return self._classes

    def sparsity(self) -> float:
        """The percentage of positions in blocks that are left out."""
        if self._edited():
            return super().sparsity()
        computed = int(torch.count_nonzero(self.classes())) * self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1]
        return 100 * (1 - computed / self.numel())

    def to_dense(self) -> Tensor:
        """int32 [B, H, blocks of queries, blocks of keys]: 1 where a block keeps anything."""
        return super().to_dense() if self._edited() else (self.classes() != blocks.EMPTY).to(torch.int32)

    def to(self, device: torch.device | str) -> BlockMask:
        """The mask with its tables on a device. What mask_mod captures stays where it is."""
        if not self.symbolic or self.dq_write_order is not None:
            return super().to(device)
        made = self._with(self._lengths, torch.device(device))
        made._classes = None if self._classes is None else self._classes.to(device)
        return made

    def _adjust(self, new_q_len: int, new_kv_len: int) -> BlockMask:
        if not self.symbolic or self.dq_write_order is not None:
            return super()._adjust(new_q_len, new_kv_len)
        return self._with((new_q_len, new_kv_len), self.device)

    def _with(self, lengths: tuple[int, int], device: torch.device) -> "SymbolicBlockMask":
        return SymbolicBlockMask(self._function, (*self.batch_heads, *lengths), self.BLOCK_SIZE, device, self._separate)

    def __repr__(self) -> str:
        if self._edited():
            return super().__repr__()
        rows, columns = (-(-length // size) for length, size in zip(self._lengths, self.BLOCK_SIZE, strict=True))
        shapes = {1: (*self.batch_heads, rows), 2: (*self.batch_heads, rows, columns)}
        turned = {1: (*self.batch_heads, columns), 2: (*self.batch_heads, columns, rows)}
        lines = []
        for name, (kind, place, by_keys) in _TABLES.items():
            shape = None if kind == "full" and not self._separate else torch.Size((turned if by_keys else shapes)[place + 1])
            lines.append(f"    {name}={shape},\n")
        name = getattr(self.mask_mod, "__name__", self.mask_mod)
        rest = f"    BLOCK_SIZE={self.BLOCK_SIZE},\n    shape={self.shape},\n    sparsity={self.sparsity():.2f}%,\n    mask_mod={name}\n"
        return f"BlockMask(\n{''.join(lines)}{rest})"

    def _has_columns(self) -> bool:
        return True if not self._edited() else super()._has_columns()

    def _table(self, name: str) -> Tensor | None:
        if self._tables is None:
            self._tables = {}
        if name not in self._tables:
            kind, _, by_keys = _TABLES[name]
            pair = [other for other, (k, _, c) in _TABLES.items() if (k, c) == (kind, by_keys)]
            kept = list(self._tables.values())
            unchanged = self._made is None or self._made.holds(kept)
            self._tables.update(zip(pair, self._ordered(kind, by_keys), strict=True))
            if unchanged:
                self._made = Snapshot(list(self._tables.values()))
        return self._tables[name]

    def _ordered(self, kind: str, by_keys: bool) -> tuple[Tensor | None, Tensor | None]:
        classes = self.classes()
        if kind == "full":
            if not self._separate:
                return None, None
            dense = classes == blocks.FULL
        else:
            dense = classes == blocks.PARTIAL if self._separate else classes != blocks.EMPTY
        return ordered(dense.mT if by_keys else dense)

    def _set_table(self, name: str, value: Tensor | None) -> None:
        for other in _TABLES:  # the other tables stay those of the function
            self._table(other)
        assert self._tables is not None
        self._tables[name] = value
        self._replaced = True

    @classmethod
    def from_kv_blocks(cls, *args: Any, **kwargs: Any) -> BlockMask:
        """See `BlockMask`."""
        return BlockMask.from_kv_blocks(*args, **kwargs)

    @classmethod
    def _unflatten(cls, leaves: Any, context: Any) -> BlockMask:
        return BlockMask._unflatten(leaves, context)


def _table_property(name: str) -> property:
    def get(mask: SymbolicBlockMask) -> Tensor | None:
        return mask._table(name)

    def put(mask: SymbolicBlockMask, value: Tensor | None) -> None:
        mask._set_table(name, value)

    return property(get, put)


for _name in _TABLES:
    setattr(SymbolicBlockMask, _name, _table_property(_name))


def ordered(dense: Tensor) -> tuple[Tensor, Tensor]:
    """A pattern [..., rows, columns] as a table: int32 counts [..., rows], and int32 columns [..., rows, columns], those kept first."""
    listed = torch.argsort(dense.to(torch.int8), dim=-1, descending=True, stable=True)
    return dense.sum(-1, dtype=torch.int32).contiguous(), listed.to(torch.int32).contiguous()


def listed_blocks(counts: Tensor, indices: Tensor, columns: int) -> Tensor:
    """The pattern of a table, bool [..., rows, columns]. What a row lists beyond its count, or beyond `columns`, is nothing."""
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    listed = listed & (indices >= 0) & (indices < columns)
    place = torch.where(listed, indices, columns).long()
    pattern = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.int32, device=indices.device)
    return pattern.scatter_add(-1, place, listed.int())[..., :columns] > 0


def _register() -> None:
    """BlockMasks are trees of their tensors for torch.utils._pytree, as torch's are."""
    flatten: Any = getattr(TorchBlockMask, "_flatten", None)
    known: Mapping[Any, Any] = torch.utils._pytree.SUPPORTED_NODES
    if flatten is None or TorchBlockMask not in known:
        return
    for kind in (BlockMask, SymbolicBlockMask):
        torch.utils._pytree.register_pytree_node(
            kind, kind._flatten, kind._unflatten, flatten_with_keys_fn=kind._flatten_with_keys,
            serialized_type_name=f"attn_mlir.flex.{kind.__name__}",
        )  # fmt: skip


_register()
