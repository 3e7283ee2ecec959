"""Block masks as tensors: int8 [B, H, blocks of queries, blocks of keys], where 0 leaves out all positions of a block."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from attn_mlir.api.block_mask import BlockMask
from attn_mlir.api.inputs import Problem
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.named_tensors import SymbolicTensor
from attn_mlir.frontend.tensors import ELEMENTS

NAME = "extern_block_mask"
"""The tensor's name among the custom inputs of a program."""
_TABLE = SymbolicTensor(NAME, ("batch", "heads", "blocks", "blocks_kv"))
_AXES = (("batch size", "B"), ("number of heads", "Hq"))
_LENGTHS = (("queries", "Sq"), ("keys", "Skv"))


@dataclasses.dataclass(frozen=True)
class TableMask:
    """The mask function that reads the tensor. The sizes of blocks are constants of the program."""

    sizes: tuple[int, int]

    def scan_key(self) -> tuple[int, int]:
        """Tells `Scan` all that shapes a trace."""
        return self.sizes

    def __call__(self, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return _TABLE[b, h, q_idx // self.sizes[0], kv_idx // self.sizes[1]] != 0


def blocks_of(rows: Any, columns: Any) -> TableMask:
    """The mask function for blocks of so many queries and keys, `infer_mask_block_M` and `infer_mask_block_N`."""
    for name, size in (("infer_mask_block_M", rows), ("infer_mask_block_N", columns)):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ArgumentError(f"{name} is a positive number of positions, got {size!r}")
    return TableMask((rows, columns))


def with_blocks(blocks: TableMask, mask: Callable[..., Any] | None) -> Callable[..., Any]:
    """The mask of both: positions of blocks that are kept and that `mask` keeps."""
    if mask is None:
        return blocks
    function = mask

    def both(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return blocks(b, h, q_idx, kv_idx) & function(b, h, q_idx, kv_idx)

    return both


def table_of(given: Any, blocks: TableMask, device: torch.device | None = None) -> torch.Tensor:
    """The tensor of a block mask. That of a BlockMask is evaluated at its first use, for a device. Raises ArgumentError."""
    if isinstance(given, BlockMask) and device is not None:
        if given.block != blocks.sizes:
            rows, columns = given.block
            raise ArgumentError(
                f"block_mask has blocks of {rows} x {columns} and this AttentionEngine of {blocks.sizes[0]} x {blocks.sizes[1]}: "
                f"make it with infer_mask_block_M={rows}, infer_mask_block_N={columns}"
            )
        given = given.table(device)
    if not isinstance(given, torch.Tensor):
        raise ArgumentError(f"block_mask is a tensor, or what create_block_mask makes, got {type(given).__name__}")
    if given.dim() != 4 or given.layout != torch.strided:
        raise ArgumentError(f"block_mask must be a tensor [B, H, blocks of queries, blocks of keys], got shape {list(given.shape)}")
    if given.dtype not in ELEMENTS or given.dtype.is_floating_point:
        raise ArgumentError(f"block_mask has dtype {given.dtype}: use torch.int8 or torch.bool, nonzero where a block is kept")
    return given


def fitting(table: torch.Tensor, blocks: TableMask, problem: Problem) -> torch.Tensor:
    """The tensor with all batches and heads of a call; sizes of 1 stand for any number. Raises ArgumentError where it does not fit."""
    sizes: Mapping[str, int] = problem.sizes
    if table.device != problem.device:
        raise ArgumentError(f"block_mask is on {table.device} but q is on {problem.device}: move it there")
    for position, (name, key) in enumerate(_AXES):
        if table.shape[position] not in (1, sizes[key]) and not (key == "Hq" and table.shape[1] == sizes["Hkv"]):
            raise ArgumentError(f"block_mask has a {name} of {table.shape[position]}, but it is {sizes[key]} in this call (or 1, for all)")
    for position, ((name, key), size) in enumerate(zip(_LENGTHS, blocks.sizes, strict=True), 2):
        wanted = -(-sizes[key] // size)
        if table.shape[position] != wanted:
            raise ArgumentError(
                f"block_mask has {table.shape[position]} blocks of {name}, but {sizes[key]} {name} are {wanted} blocks of {size} "
                "(infer_mask_block_M x infer_mask_block_N)"
            )
    if table.shape[1] not in (1, sizes["Hq"]):  # a block pattern for each head of k and v
        table = table.repeat_interleave(sizes["Hq"] // table.shape[1], dim=1)
    return table.expand(sizes["B"], sizes["Hq"], -1, -1)
