"""Attentions and engines as modules of torch: copied and pickled by the arguments they were made with, and made again from these."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

from attn_mlir.api.makers import from_state, packed, tensors_of, unpacked, with_tensors
from attn_mlir.errors import ArgumentError, UnsupportedError

_PIECES = ("score_mod", "query_mod", "key_mod", "value_mod", "q_mod", "k_mod", "v_mod", "decay_mod", "skip_mod", "mask_mod", "row")
_CHANGEABLE = ("dropout_p", "deterministic")
"""Arguments that are attributes, which may be set later."""
_KNOWN = "_known_dtypes"
"""In a state: those of custom inputs."""
_Module = torch.nn.Module
_CALL, _CALL_IMPL = _Module.__call__, _Module._call_impl
_is_dynamo_compiling = torch.compiler.is_dynamo_compiling


class CapturedParameters(torch.nn.Module):
    """The parameters that a ready-made function, such as `mods.bias(bias)`, was made with, by the names of its arguments."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)


class EngineModule(torch.nn.Module):
    """Base of attentions and engines. Between its two methods, `__init__` of one sets what follows from its arguments.

    What follows from them (programs, functions that read variables, tunings) is made again where one is unpickled or copied.
    Functions are pickled as Python does it: by the names of their modules and their own,
    ready-made ones (`attn_mlir.masks`, `mods`, `rows`) by what they were made with.
    """

    _arguments: dict[str, Any]
    _made: frozenset[str]
    dropout_p: float

    def _begin(self, given: Mapping[str, Any]) -> None:
        """`given` are the arguments. Those that are modules themselves become submodules, so that `.to` and `parameters()` see them.

        So do the parameters that ready-made functions were made with.
        """
        torch.nn.Module.__init__(self)
        self._arguments = {name: value for name, value in given.items() if name not in ("self", "__class__", "unknown")}
        self._own = frozenset(self.__dict__)
        self._captured: list[tuple[str, str, Any]] = []
        self._replaced: tuple[list[Any], EngineModule] | None = None
        for name in _PIECES:
            piece = self._arguments.get(name)
            if isinstance(piece, torch.nn.Module):
                self.add_module(name, piece)
                self._captured.append((name, "", piece))
            elif parameters := {at: x for at, x in tensors_of(piece).items() if isinstance(x, torch.nn.Parameter)}:
                self.add_module(name, CapturedParameters(parameters))
                self._captured += [(name, at, parameter) for at, parameter in parameters.items()]

    def _end(self) -> None:
        """Remembers what was set since `_begin`: none of it is part of the engine's state."""
        self._made = frozenset(self.__dict__) - self._own | {"_own", "_made"}

    def current(self) -> Any:
        """The engine itself; where somebody has put others in the place of parameters of ready-made functions, or of modules, one of these.

        That is what functional_call, parametrizations, load_state_dict(assign=True) and replicas of DataParallel do.
        """
        modules = self._modules
        now = [getattr(modules[piece], at) if at else modules[piece] for piece, at, _ in self._captured]
        if all([one is known for one, (_, _, known) in zip(now, self._captured, strict=True)]):
            return self
        if torch.compiler.is_dynamo_compiling():
            names = ", ".join([piece for piece, _, _ in self._captured])
            raise UnsupportedError(
                f"inside torch.compile, parameters of {names} were replaced by other tensors: write the function as a module, which reads "
                "its own parameters"
            )
        if self._replaced is not None and all([a is b for a, b in zip(self._replaced[0], now, strict=True)]):
            made = self._replaced[1]
        else:
            made = self._made_of(now)
            if all([isinstance(one, (torch.nn.Parameter, torch.nn.Module)) for one in now]):  # others are tensors of one call
                self.__dict__["_replaced"] = now, made
        made.__dict__.update(training=self.training, **{name: self.__dict__[name] for name in _CHANGEABLE if name in self.__dict__})
        return made

    def _made_of(self, now: Sequence[Any]) -> "EngineModule":
        """The same engine with `now`, what its submodules hold, in the place of what they held when it was made."""
        others = {id(known): one for one, (_, _, known) in zip(now, self._captured, strict=True)}
        state = self._state()
        given = dict(state["_arguments"])
        for name in {piece for piece, _, _ in self._captured}:
            piece = given[name]
            given[name] = others[id(piece)] if id(piece) in others else with_tensors(piece, lambda x: others.get(id(x), x))
        made = type(self).__new__(type(self))
        made._make_again({**state, "_arguments": given})
        made._captured = []
        return made

    def probability(self, given: float | None) -> float:
        """The probability of dropout in a call: the one that it gives, else the module's own, which is 0 after `eval()`."""
        if given is not None:
            return given
        return self.dropout_p if self.training else 0.0

    def __call__(self, *args: Any, **options: Any) -> Any:
        """`forward`, by torch's own way where that has something to do: hooks, tracers, `compile()`. It takes 5 us, a warm call 40."""
        if (
            _is_dynamo_compiling()
            or _Module.__call__ is not _CALL
            or _Module._call_impl is not _CALL_IMPL
            or self._compiled_call_impl is not None
            or self._forward_hooks
            or self._forward_pre_hooks
            or self._backward_hooks
            or self._backward_pre_hooks
            or _global_forward_hooks
            or _global_forward_pre_hooks
            or _global_backward_hooks
            or _global_backward_pre_hooks
        ):
            return super().__call__(*args, **options)
        return self.forward(*args, **options)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PIECES and "_made" in self.__dict__:
            raise ArgumentError(
                f"{name} of an engine is fixed, since kernels are made for it: make another {type(self).__name__} with the other one"
            )
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        state = self._state()
        if state["_arguments"].get("check"):  # what it compares was compared
            state["_arguments"] = {**state["_arguments"], "check": False}
        state["_arguments"] = {name: packed(value) for name, value in state["_arguments"].items()}
        return {**state, _KNOWN: self.__dict__.get("_dtypes", ())}

    def __setstate__(self, state: dict[str, Any]) -> None:
        given = {name: unpacked(value) for name, value in state["_arguments"].items()}
        with from_state(state.get(_KNOWN, ())):
            self._make_again({**{name: value for name, value in state.items() if name != _KNOWN}, "_arguments": given})

    def _state(self) -> dict[str, Any]:
        """The arguments, as they are by now, and what is no consequence of them."""
        state = {name: value for name, value in self.__dict__.items() if name not in self._made}
        now = {name: self.__dict__[name] for name in _CHANGEABLE if name in self._arguments and name in self.__dict__}
        return {**state, "_arguments": {**self._arguments, **now}}

    def _make_again(self, state: dict[str, Any]) -> None:
        kind = next(kind for kind in type(self).__mro__ if EngineModule in kind.__bases__)
        for name in self.__dict__.pop("_made", ()):  # what follows from the arguments that it had is none of its own
            self.__dict__.pop(name, None)
        kind.__init__(self, **state["_arguments"])
        super().__setstate__(state)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        """As modules have it, for `.to()` and its like; tensors that are no parameters of ready-made functions move, too."""
        super()._apply(fn, recurse)
        moved = {name: self._moved(name, value, fn) for name, value in self._arguments.items()}
        if any(value is not self._arguments[name] for name, value in moved.items()):
            state = self._state()
            self._make_again({**state, "_arguments": {**state["_arguments"], **moved}})
        return self

    def _moved(self, name: str, piece: Any, fn: Callable[..., Any]) -> Any:
        """A ready-made function of tensors that `fn` changed; others as they are."""
        tensors = tensors_of(piece)
        if not tensors or isinstance(piece, torch.nn.Module):
            return piece
        own = dict(self._modules[name].named_parameters()) if name in self._modules else {}  # type: ignore[union-attr]
        changed = {id(x): own[at] if at in own else fn(x) for at, x in tensors.items()}
        return with_tensors(piece, lambda x: changed[id(x)]) if any(changed[id(x)] is not x for x in tensors.values()) else piece
