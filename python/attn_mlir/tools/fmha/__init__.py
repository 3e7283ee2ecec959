"""Parts of attn-fmha, the command line of CK-tile's FMHA examples."""
