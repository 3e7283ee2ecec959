"""How the passes `attn-tile-*` build kernels."""
