"""The nvidia backend: declared, so that asking for it gives a clear error; it generates no kernels yet."""

from attn_mlir.backends import Backend

BACKEND = Backend(name="nvidia", package="attn_mlir.backends.nvidia", device_types=("cuda",))
