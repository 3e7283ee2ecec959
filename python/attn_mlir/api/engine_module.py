"""Engines as modules of torch: they are copied and pickled by the arguments they were made with, and made again from these."""

from collections.abc import Mapping
from typing import Any

import torch

from attn_mlir.api.makers import packed, unpacked
from attn_mlir.errors import ArgumentError

_PIECES = ("score_mod", "query_mod", "key_mod", "value_mod", "q_mod", "k_mod", "v_mod", "decay_mod", "mask_mod")


class EngineModule(torch.nn.Module):
    """Base of the engines. Between its two methods, `__init__` of an engine sets what follows from its arguments.

    What follows from them (programs, functions that read variables, tunings) is made again where an engine is unpickled or copied.
    Functions are pickled as Python does it: by the names of their modules and their own,
    masks of `attn_mlir.masks` by what they were made with.
    """

    _arguments: dict[str, Any]
    _made: frozenset[str]

    def _begin(self, given: Mapping[str, Any]) -> None:
        """`given` are the arguments. Those that are modules themselves become submodules, so that `.to` and `parameters()` see them."""
        torch.nn.Module.__init__(self)
        self._arguments = {name: value for name, value in given.items() if name not in ("self", "__class__")}
        self._own = frozenset(self.__dict__)
        for name in _PIECES:
            if isinstance(piece := self._arguments.get(name), torch.nn.Module):
                self.add_module(name, piece)

    def _end(self) -> None:
        """Remembers what was set since `_begin`: none of it is part of the engine's state."""
        self._made = frozenset(self.__dict__) - self._own | {"_own", "_made"}

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PIECES and "_made" in self.__dict__:
            raise ArgumentError(
                f"{name} of an engine is fixed, since kernels are made for it: make another {type(self).__name__} with the other one"
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in self._made}
        if state["_arguments"].get("check"):  # what it compares was compared
            state["_arguments"] = {**state["_arguments"], "check": False}
        state["_arguments"] = {name: packed(value) for name, value in state["_arguments"].items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        kind = next(kind for kind in type(self).__mro__ if EngineModule in kind.__bases__)
        state["_arguments"] = {name: unpacked(value) for name, value in state["_arguments"].items()}
        kind.__init__(self, **state["_arguments"])
        super().__setstate__(state)
