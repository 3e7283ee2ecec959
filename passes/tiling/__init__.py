"""How `attn-tile` builds a kernel."""
