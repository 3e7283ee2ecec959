"""attn_mlir inside other libraries; each module names the library it serves and needs it installed."""
