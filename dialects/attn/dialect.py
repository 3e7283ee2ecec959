"""The `attn` dialect itself; every op of it lives in a module beside this one."""

from attn_mlir.mlir import ext


class Attn(ext.Dialect, name="attn"):
    """What an attention variant computes, on scalars, before any tiling."""
