"""The operator that makes key lists in a graph of torch.compile or torch.export."""

import torch

from attn_mlir.runtime.key_lists import form_of, lists_of


@torch.library.custom_op("attn_mlir::key_lists", mutates_args=())
def key_lists(index: torch.Tensor, kv_len: int, keys: int, inverse: bool) -> list[torch.Tensor]:
    """The tensors of `frontend.given.LISTS` for blocks of so many keys."""
    return lists_of(index, kv_len, form_of(1, keys), inverse)


@key_lists.register_fake
def _(index: torch.Tensor, kv_len: int, keys: int, inverse: bool) -> list[torch.Tensor]:
    form = form_of(1, keys)
    batch, heads, lists, count = index.shape
    room = batch * heads * lists * count * form.parts
    back, tiles = (room * form.tiles, -(-kv_len // form.tile)) if inverse else (0, 0)

    def made(*shape: int | torch.SymInt, wide: bool = False) -> torch.Tensor:
        return index.new_empty(shape, dtype=torch.int64 if wide else torch.int32)

    def flat(size: int | torch.SymInt) -> torch.Tensor:
        return made(torch.sym_max(1, size))

    return [flat(room), made(batch, heads, lists, 2, wide=True), flat(back), flat(back), made(batch, heads, tiles, 2, wide=True)]
