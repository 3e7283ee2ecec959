"""The text of device helpers, which printed kernels include: a kernel is one file for compilers that know no folder of ours."""

from importlib.resources import files


def text_of(*names: str) -> str:
    """The text of files of helpers, named from this folder: "hopper/attn_wgmma.cuh"."""
    folder = files("attn_mlir.backends.nvidia")
    return "".join((folder / name).read_text() for name in names).replace("#pragma once\n", "")
