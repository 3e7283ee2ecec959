"""`OnlineFunc`: an attention's row function in online form, written by the user."""

from collections.abc import Mapping
from typing import Any

from attn_mlir.api.custom_io import CustomIO
from attn_mlir.api.symbols import SymbolScalar
from attn_mlir.errors import ArgumentError


class OnlineFunc:
    """Base class of row functions in online form. Its methods are static and are traced, not run.

    Keys come in blocks. For each, `online_fwd` gets the scores (after mask and score_mod) and the row states, and gives
    the weights of the keys, the new states and the factor o_scale: o = o * o_scale + weights @ v.
    `online_fwd_epilogue` makes the output and the row outputs of the last o and states. `forward` and `backward` are
    optional: where both are defined they make the backward pass, else it is derived. `combine` is only checked, on request:
    how results over different keys are merged is derived.
    """

    def __init__(
        self,
        online_rowscales: Mapping[str, SymbolScalar],
        final_rowscales: Mapping[str, SymbolScalar],
        external_fwd_tensors: CustomIO | None = None,
    ) -> None:
        """Names the row states with their initial values, and the row outputs."""
        self.online_rowscales = _scalars("online_rowscales", online_rowscales)
        self.final_rowscales = _scalars("final_rowscales", final_rowscales)
        self.external_fwd_tensors = CustomIO() if external_fwd_tensors is None else external_fwd_tensors
        if not isinstance(self.external_fwd_tensors, CustomIO):
            raise ArgumentError(f"OnlineFunc takes a CustomIO as third argument, got {type(external_fwd_tensors).__name__}")

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        """One block of keys: returns scores, new_online_rowscales, o_scale."""
        raise _missing("online_fwd(scores, online_rowscales, b, h, q_idx)")

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        """After the last block: returns o_new, final_rowscales. By default o itself, and no row outputs."""
        return o, {}

    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """The weights once more, from scores and row outputs."""
        raise _missing("forward(scores, final_rowscales, b, h, q_idx, kv_idx)")

    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        """The gradient of the scores from that of the weights; `scores` is what `forward` returned."""
        raise _missing("backward(dp, scores, final_rowscales, doosum_rowscales, b, h, q_idx, kv_idx)")

    @staticmethod
    def combine(final_rowscales: Any) -> Any:
        """The factors with which partial results over different keys are added."""
        raise _missing("combine(final_rowscales)")


def check_online_func(online_func: Any) -> OnlineFunc:
    """`online_func` itself, if an AttentionEngine can use it."""
    if isinstance(online_func, type):
        raise ArgumentError(f"online_func is the class {online_func.__name__}; pass an instance: online_func={online_func.__name__}()")
    if not isinstance(online_func, OnlineFunc):
        raise ArgumentError(f"online_func must be an instance of an OnlineFunc, got {type(online_func).__name__}")
    name = type(online_func).__name__
    if not hasattr(online_func, "external_fwd_tensors"):
        raise ArgumentError(f"{name}.__init__ must call super().__init__(online_rowscales, final_rowscales)")
    if type(online_func).online_fwd is OnlineFunc.online_fwd:
        raise ArgumentError(f"{name} lacks online_fwd(scores, online_rowscales, b, h, q_idx)")
    return online_func


def writes_backward(online_func: OnlineFunc) -> bool:
    """Whether the user wrote the backward pass; otherwise it is derived."""
    kind = type(online_func)
    if kind.backward is OnlineFunc.backward:
        return False
    if kind.forward is OnlineFunc.forward:
        raise ArgumentError(
            f"{kind.__name__} defines backward but not forward(scores, final_rowscales, b, h, q_idx, kv_idx), which gives it the "
            "weights once more: define it, or leave backward out, and the backward pass is derived"
        )
    return True


def _scalars(what: str, given: Any) -> dict[str, SymbolScalar]:
    if not isinstance(given, Mapping):
        raise ArgumentError(f"OnlineFunc: {what} must be a dictionary of SymbolScalars, got {type(given).__name__}")
    for name, scalar in given.items():
        if not isinstance(name, str) or not isinstance(scalar, SymbolScalar):
            example = '{"m": SymbolScalar("m", Var("-inf"))}'
            raise ArgumentError(
                f"OnlineFunc: {what} must map names to SymbolScalars, as in {example}; got {name!r}: {type(scalar).__name__}"
            )
    return dict(given)


def _missing(signature: str) -> ArgumentError:
    return ArgumentError(f"this OnlineFunc does not define {signature}")
