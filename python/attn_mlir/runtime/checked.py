"""Whether more is checked than has to be: `ATTN_MLIR_CHECK`."""

import os


def is_checked() -> bool:
    """Whether what is allowed but may be a mistake is an error, and what a GPU is waited for to know is looked at."""
    return os.environ.get("ATTN_MLIR_CHECK", "") not in ("", "0")
