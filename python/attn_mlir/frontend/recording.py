"""Records what torch computes of captured tensors while a user's function is traced: the steps and facts of `tape`."""

from typing import Any

import numpy as np
import torch

from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.frontend import scope, tape, tensors

_DEVICE = torch.Tensor.device.__get__  # type: ignore[attr-defined]
_KEYED = (
    torch.Tensor.dim, torch.Tensor.ndimension, torch.Tensor.is_floating_point, torch.Tensor.is_complex,
    torch.Tensor.dtype.__get__, torch.Tensor.ndim.__get__,  # type: ignore[attr-defined]
)  # fmt: skip
"""What a trace is found by, for captured tensors themselves."""
_MOVES = ("to", "cpu", "cuda", "type", "type_as")


def recorded(
    trace: scope.Trace, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[torch.Tensor], result: Any
) -> Any:
    """The result of a function of captured tensors, with a step of the tape."""
    if any(result is tensor for tensor in inputs):
        if name in _MOVES:
            recorded(trace, _DEVICE, "device", (result,), {}, [result], result.device)
        return result
    try:
        given = tape.written(args, trace.tensors, trace.fresh), tape.written(kwargs, trace.tensors, trace.fresh)
    except LookupError:  # tensors that were reached in ways that cannot be followed
        trace.reusable = False
        return result
    if func in _KEYED and given[0][0].source[0] == "leaf":
        return result
    first = next((trace.tensors[id(tensor)][1] for tensor in inputs if id(tensor) in trace.tensors), "captured")
    label = first if name in ("__getitem__", "__get__") or len(first) > 40 else f"{first}_{name.strip('_')}"
    return TapeResults(trace, label).of(func, name, given, result)


class TapeResults:
    """Makes what a step gives known to the trace, as tensors called `label` and numbers."""

    def __init__(self, trace: scope.Trace, label: str) -> None:
        self._trace = trace
        self._label = label
        if trace.recorder is None:
            trace.recorder = tape.TapeRecorder(trace.grad)

    def of(self, func: Any, name: str, given: tuple[Any, dict[str, Any]], result: Any) -> Any:
        """The result of `func`, for the user's function to go on with."""
        source = self._trace.recorder.step(func, *given, result)
        if name == "item" and type(result) in (int, float) and np.isfinite(result):
            return self._number(source, result)
        if name == "__get__" and result is not None:  # `t.grad is not None` asks for nothing that torch sees
            self._trace.recorder.facts[("none", source)] = False
        self._known(source, result)
        return result

    def _number(self, source: Any, value: Any) -> Any:
        return tensors.wrap(self._trace.capture(scope.Captured(source, self._label, CaptureKind.of_number(value)), value))

    def _known(self, source: Any, result: Any) -> None:
        trace = self._trace
        if isinstance(result, torch.Tensor):
            trace.tensors[id(result)] = (source, self._label)
            trace.keep.append(result)
        elif isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
            trace.recorder.facts[("len", source)] = len(result)
            for position, item in enumerate(result):
                self._known((*source, position), item)
        elif isinstance(result, np.ndarray):
            trace.recorder.facts[source] = result.copy()
            result.flags.writeable = False
        elif isinstance(result, (*tape.PLAIN, torch.Size)):
            trace.recorder.facts[source] = result
            if type(result) is float and np.isfinite(result):  # an argument of the program where it is only computed with
                trace.keep.append(result)
                trace.numbers[id(result)] = self._number(source, result)._node
        else:
            trace.reusable = False
