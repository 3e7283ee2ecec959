"""The `tile` dialect itself; every op of it lives in a module beside this one."""

from attn_mlir.mlir import ext


class Tile(ext.Dialect, name="tile"):
    """How it is computed: tiles are tensors, global memory is memrefs, loops are `scf`."""
