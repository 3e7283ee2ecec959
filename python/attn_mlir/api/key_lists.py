"""`key_index=` and `key_block=` of `attention`: which blocks of keys each block of queries sees."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor

from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.runtime.key_lists import Form, form_of, lists_of

MAX_KEY_BLOCK = 1 << 20


def check_key_lists(index: Any, block: Any, sizes: Mapping[str, Any], device: torch.device) -> Form:
    """The form of lists for q, k and v of these sizes. Raises ArgumentError naming what is wrong."""
    if block is None:
        raise ArgumentError("key_index needs key_block=(queries, keys), the sizes of the blocks that it counts in")
    sized = isinstance(block, (tuple, list)) and len(block) == 2 and all([type(n) is int and 1 <= n <= MAX_KEY_BLOCK for n in block])
    if not sized:
        raise ArgumentError(f"key_block must be two positive integers, queries and keys of a block, got {block!r}")
    if not isinstance(index, torch.Tensor) or index.dtype != torch.int32:
        given = f"a tensor of {index.dtype}: use key_index.to(torch.int32)" if isinstance(index, torch.Tensor) else type(index).__name__
        raise ArgumentError(f"key_index must be an int32 tensor, got {given}")
    queries, keys = block
    wanted = "[batch, 1 or heads of k or of q, blocks of queries, entries]"
    if index.dim() != 4:
        raise ArgumentError(f"key_index must be {wanted}, got shape {list(index.shape)}")
    if index.device != device:
        raise ArgumentError(f"key_index is on {index.device} but q is on {device}: move it with key_index.to(q.device)")
    blocks = -(-sizes["Sq"] // queries)
    if index.shape[0] != sizes["B"] or index.shape[2] != blocks:
        raise ArgumentError(
            f"key_index must be {wanted}, here [{sizes['B']}, ..., {blocks}, ...] for {sizes['Sq']} queries in blocks of {queries}, "
            f"got shape {list(index.shape)}"
        )
    if index.shape[1] not in (1, sizes["Hkv"], sizes["Hq"]):
        raise ArgumentError(
            f"key_index has {index.shape[1]} heads: give 1 for all, {sizes['Hkv']} for those of k, or {sizes['Hq']} for those of q"
        )
    return form_of(queries, keys)


def make_lists(index: torch.Tensor, sizes: Mapping[str, Any], form: Form, inverse: bool) -> list[torch.Tensor]:
    """The tensors of the lists; see `runtime.key_lists`. In graphs without data, an operator stands for them."""
    if is_functorch_wrapped_tensor(index):
        raise UnsupportedError("key_index is batched by torch.vmap: put its batches into the dimension of q's batch instead")
    if isinstance(index, FakeTensor) or torch.compiler.is_dynamo_compiling() or torch._C._len_torch_dispatch_stack():
        from attn_mlir.runtime import key_list_ops

        return key_list_ops.key_lists(index, sizes["Sq"], sizes["Skv"], form.queries, form.listed, inverse)
    return lists_of(index, sizes["Sq"], sizes["Skv"], form, inverse)


def mask_of(index: torch.Tensor, sizes: Mapping[str, int], form: Form, mask_mod: Callable[..., Any] | None) -> Callable[..., Any]:
    """The lists as a mask that reads a table of all blocks, for devices whose kernels take no lists."""
    blocks = -(-sizes["Skv"] // form.listed)
    check_numbers(index, blocks, form.listed)
    # One column more takes what is no block.
    table = torch.zeros((*index.shape[:3], blocks + 1), dtype=torch.bool, device=index.device)
    table.scatter_(3, torch.where(index < 0, blocks, index).long(), True)
    table = table[..., :blocks].contiguous()
    group, queries, keys = sizes["Hq"] // index.shape[1], form.queries, form.listed

    def listed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        present = table[b, h // group, q_idx // queries, kv_idx // keys]
        return present if mask_mod is None else present & mask_mod(b, h, q_idx, kv_idx)

    return listed


def check_numbers(index: torch.Tensor, blocks: int, keys: int) -> None:
    """Checks that a tensor lists blocks that there are, waiting for its device. Raises ArgumentError."""
    if not index.numel() or (index.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    low, high = (int(x) for x in torch.aminmax(index))
    if low < -1 or high >= blocks:
        raise ArgumentError(
            f"key_index holds {high if high >= blocks else low}, but there are {blocks} blocks of {keys} keys: "
            f"give 0 to {blocks - 1}, or -1 for no block"
        )
