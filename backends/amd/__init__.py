"""The amd backend: declared, so that asking for it gives a clear error; it generates no kernels yet."""

from attn_mlir.backends import Backend

BACKEND = Backend(name="amd", package="attn_mlir.backends.amd", device_types=("hip",))
