"""FlexAttention's API: what `torch.nn.attention.flex_attention` exports, under the same names, computed by attn_mlir.

    from attn_mlir.flex import create_block_mask, flex_attention

in place of torch's line is the whole change. See docs/flex-attention.md.
"""

from attn_mlir.flex.attention import AuxOutput, AuxRequest, FlexKernelOptions, flex_attention
from attn_mlir.flex.block_mask import BlockMask
from attn_mlir.flex.create import and_masks, create_block_mask, create_mask, noop_mask, or_masks

__all__ = [
    "AuxOutput",
    "AuxRequest",
    "BlockMask",
    "FlexKernelOptions",
    "and_masks",
    "create_block_mask",
    "create_mask",
    "flex_attention",
    "noop_mask",
    "or_masks",
]
