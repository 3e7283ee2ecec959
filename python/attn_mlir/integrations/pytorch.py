"""attn_mlir in place of PyTorch's FlexAttention, for code that cannot change its imports.

from attn_mlir.integrations import pytorch
pytorch.install()

PyTorch has a registry for kernels of its fixed attention (`torch.nn.attention._registry`), which takes no score_mod and no mask, and
none for FlexAttention. So this replaces names: `flex_attention`, `create_block_mask` and `create_mask` of
`torch.nn.attention.flex_attention`, and the same objects where other modules have imported them.
"""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch.nn.attention.flex_attention as torch_flex

from attn_mlir import flex
from attn_mlir.errors import ArgumentError

_NAMES = ("flex_attention", "create_block_mask", "create_mask")
_originals = {name: getattr(torch_flex, name) for name in _NAMES}
_replaced: list[tuple[ModuleType, str, Any]] = []


class Installation:
    """What `install` returns: leaving it as a context manager, or `uninstall()`, puts PyTorch's functions back."""

    def __enter__(self) -> "Installation":
        return self

    def __exit__(self, *_: object) -> None:
        uninstall()

    def uninstall(self) -> None:
        """Puts PyTorch's functions back."""
        uninstall()


def install(modules: Sequence[str | ModuleType] | None = None) -> Installation:
    """Lets `torch.nn.attention.flex_attention.flex_attention` and the functions that make its masks be those of `attn_mlir.flex`.

    modules: which other modules have imported these functions by name, and get them replaced there; None: every module that is
    imported now. Names in functions' closures and defaults, `functools.partial` objects and graphs that torch.compile made before
    stay PyTorch's. BlockMask stays PyTorch's class, of which `attn_mlir.flex.BlockMask` is a subclass.

    Installing twice is the same as once. Raises ArgumentError for a module that is not imported.
    """
    if modules is None:
        found = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    else:
        found = [torch_flex, *[_imported(module) for module in modules]]
    for module in found:
        if module.__name__.startswith("attn_mlir"):
            continue
        for name, value in list(vars(module).items()):
            for original, function in _originals.items():
                if value is function:
                    setattr(module, name, getattr(flex, original))
                    _replaced.append((module, name, function))
    return Installation()


def uninstall() -> None:
    """Puts PyTorch's functions back wherever `install` replaced them."""
    while _replaced:
        module, name, function = _replaced.pop()
        setattr(module, name, function)


def _imported(module: str | ModuleType) -> ModuleType:
    if isinstance(module, ModuleType):
        return module
    if module not in sys.modules:
        raise ArgumentError(f"the module {module!r} is not imported: import it before attn_mlir.integrations.pytorch.install()")
    return sys.modules[module]
