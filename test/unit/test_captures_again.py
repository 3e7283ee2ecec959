"""Captured values are read at every call, whatever is done to them, and so is what a function computes of them."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import trace_helpers
from attn_mlir import TraceError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Traced
from trace_session import Session

Function = Callable[..., Any]
F64 = torch.float64
B, H, S, D = 1, 2, 5, 4


class Same(Session):
    """Compares what a call would run, evaluated in float64, with PyTorch running the same function."""

    def check(self, score_mod: Function | None = None, mask_mod: Function | None = None) -> Traced:
        traced, captures = self.call(score_mod, mask_mod)
        scores, eye = trace_helpers.scores(), trace_helpers.eye()
        if mask_mod is None:
            made, wanted = self._made(traced, captures, scores, eye), trace_helpers.eager_scores(score_mod)  # type: ignore[arg-type]
        else:
            made = self._made(traced, captures, torch.ones_like(scores), eye)
            wanted = torch.as_tensor(mask_mod(*trace_helpers.grid())).broadcast_to(made.shape).double()
        torch.testing.assert_close(made, wanted.detach(), rtol=1e-9, atol=1e-9)
        return traced

    def _made(self, traced: Traced, captures: list[Any], scores: torch.Tensor, eye: torch.Tensor) -> torch.Tensor:
        return trace_helpers.evaluate_text(traced.text, scores, eye, eye, captures)[0]


@pytest.fixture
def same() -> Same:
    return Same(Inputs("f64", trace_helpers.LENGTH, trace_helpers.LENGTH))


def no_grad_exp(t: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return t.exp()


COMPUTED: dict[str, Callable[[Any], Function]] = {
    "method": lambda t: lambda s, b, h, i, j: s * t.exp()[h],
    "operator": lambda t: lambda s, b, h, i, j: s + (t * 2 - t)[h],
    "reduction": lambda t: lambda s, b, h, i, j: s * t.mean() + t.sum(),
    "several results": lambda t: lambda s, b, h, i, j: s * t.max(dim=0).values,
    "function": lambda t: lambda s, b, h, i, j: s * torch.nn.functional.softplus(t)[h],
    "view": lambda t: lambda s, b, h, i, j: s * t[1:][0] + t.flip(0).reshape(1, -1)[0, h],
    "unpacked": lambda t: lambda s, b, h, i, j: (lambda first, second, *_: s * first + second)(*t),
    "iterated": lambda t: lambda s, b, h, i, j: s + sum(x for x in t),
    "stacked": lambda t: lambda s, b, h, i, j: s * torch.stack([t, t * 2])[1, h],
    "with a constant": lambda t: lambda s, b, h, i, j: s * t[torch.tensor([1, 0, 1])][h],
    "condition": lambda t: lambda s, b, h, i, j: s * torch.where(t > 0.7, t, t * t)[h],
    "without gradient": lambda t: lambda s, b, h, i, j: s * no_grad_exp(t)[h],
    "item": lambda t: lambda s, b, h, i, j: s * t[0].item() + t.sum().item(),
    "element count": lambda t: lambda s, b, h, i, j: s * t.numel() + t.exp().shape[0],
}
"""Values that become part of the program: no call traces again."""

SPECIALISED: dict[str, Callable[[Any], Function]] = {
    "float": lambda t: lambda s, b, h, i, j: s * float(t[1]),
    "int": lambda t: lambda s, b, h, i, j: s * int(t[0] * 4),
    "if": lambda t: lambda s, b, h, i, j: s * 2 if t[0] > 0.7 else s,
    "if item": lambda t: lambda s, b, h, i, j: s * 2 if t[0].item() > 0.7 else s * t[0].item(),
    "list": lambda t: lambda s, b, h, i, j: s * t.tolist()[1],
    "numpy": lambda t: lambda s, b, h, i, j: s * t.detach().numpy()[1],
    "numpy function": lambda t: lambda s, b, h, i, j: s * float(np.asarray(t.detach()).sum()),
    "equal": lambda t: lambda s, b, h, i, j: s * 2 if torch.equal(t, torch.full((3,), 0.5, dtype=F64)) else s,
    "in": lambda t: lambda s, b, h, i, j: s * 2 if 0.5 in t else s,
    "range": lambda t: lambda s, b, h, i, j: s + sum(t[n] for n in range(len(t))),
}
"""Values that leave torch: the trace is good for one of them."""


def changes(t: torch.Tensor) -> Iterator[str]:
    """Changes a tensor in every way; gives the name of what was done."""
    with torch.no_grad():
        yield "nothing"
        yield "nothing"
        t.copy_(torch.tensor([1.5, 0.75, 2.0]))
        yield "copy_"
        t.data = torch.tensor([0.9, 2.0, 0.25], dtype=F64)
        yield ".data ="
        t.data.fill_(0.5)  # no version tells of it
        yield ".data.fill_"
        t.detach().numpy()[:] = [0.25, 0.5, 1.0]
        yield "memory shared with numpy"
        t.set_(torch.arange(6, dtype=F64)[::2] * 0.3)  # type: ignore[call-overload]
        yield "strides"
        t.data = torch.tensor([0.5, 0.25, 0.125, 1.0], dtype=F64)
        yield "longer"


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_values(same: Same, name: str) -> None:
    t = torch.tensor([0.5, 0.25, 1.0], dtype=F64)
    function = COMPUTED[name](t)
    for _ in changes(t):
        same.check(function)
    assert same.traces <= (2 if name in ("unpacked", "iterated") else 1)  # how many there are is part of the trace


@pytest.mark.parametrize("name", SPECIALISED)
def test_values_that_leave_torch(same: Same, name: str) -> None:
    t = torch.tensor([0.5, 0.25, 1.0], dtype=F64)
    function = SPECIALISED[name](t)
    for done in changes(t):
        before = same.traces
        same.check(function)
        if done == "nothing" and before:
            assert same.traces == before


NOT_FOLLOWED: dict[str, Callable[[Any], Function]] = {
    "deepcopy": lambda t: lambda s, b, h, i, j: s * copy.deepcopy(t)[h],
    "vmap": lambda t: lambda s, b, h, i, j: s * torch.vmap(torch.sin)(t)[h],
    "storage": lambda t: lambda s, b, h, i, j: s * t.untyped_storage()[6],
    "numpy function": lambda t: lambda s, b, h, i, j: s * torch.as_tensor(np.exp(t.detach().numpy()))[h],
}
"""Values that the trace cannot compute again: it is made again, or compared."""


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_cannot_be_followed(same: Same, name: str) -> None:
    t = torch.tensor([0.5, 0.25, 1.0], dtype=F64)
    function = NOT_FOLLOWED[name](t)
    for _ in changes(t):
        same.check(function)


ATTRIBUTES: dict[str, Function] = {
    "numel": lambda s, w: s * w.numel() + w.nelement(),
    "stride": lambda s, w: s * w.stride(0),
    "is_contiguous": lambda s, w: s * 2 if w.is_contiguous() else s,
    "requires_grad": lambda s, w: s * 2 if w.requires_grad else s,
    "is_grad_enabled": lambda s, w: s * 2 if torch.is_grad_enabled() else s,
    "grad": lambda s, w: s * 2 if w.grad is not None else s,
    "version": lambda s, w: s * w._version,
    "data_ptr": lambda s, w: s * 2 if w.data_ptr() % 128 else s,
    "dtype": lambda s, w: s * 2 if w.dtype == F64 else s,
    "shape": lambda s, w: s * w.shape[0] + w.dim(),
    "unbind": lambda s, w: s * sum(w.reshape(-1).unbind(0)),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_a_tensor_that_is_replaced(same: Same, name: str) -> None:
    read = ATTRIBUTES[name]
    w = torch.ones(2)
    function = lambda s, b, h, i, j: read(s, w)  # noqa: E731
    learned = torch.ones(3, dtype=F64, requires_grad=True)
    learned.sum().backward()
    replacements = torch.ones(2), torch.ones(5, dtype=F64), torch.ones(8, dtype=F64)[::2], learned, torch.ones(2, 3, dtype=F64).T
    for w in replacements:  # noqa: B007
        same.check(function)
        with torch.no_grad():
            same.check(function)
    w = torch.ones(2)
    same.check(function)
    w.data = torch.full((7,), 0.5)
    same.check(function)


def test_replacement_by_another_tensor_of_a_computed_kind(same: Same) -> None:
    w: Any = torch.ones(3)
    function = lambda s, b, h, i, j: s * (w * 1.5)[h]  # noqa: E731
    for w in (torch.ones(3), torch.ones(3, dtype=F64), torch.arange(4), torch.full((3,), 2.0).half()):  # noqa: B007
        same.check(function)
    a, c = torch.ones(3), torch.ones(3)
    product = lambda s, b, h, i, j: s * (a + c)[h]  # noqa: E731
    same.check(product)
    c = torch.arange(3)
    same.check(product)
    a, c = torch.ones(2), torch.ones(3)
    with pytest.raises(TraceError, match="size of tensor a"):
        same.check(product)


def test_alternating_values_do_not_trace_again(same: Same) -> None:
    t = torch.ones(3)
    function = lambda s, b, h, i, j: s * 2 if t[0] > 0 else s  # noqa: E731
    for value in (1, -1, 1, -1, 2, -2):
        t.fill_(value)
        same.check(function)
    assert same.traces == 2


def test_a_number_that_changes_makes_no_new_program(same: Same) -> None:
    t = torch.ones(3)
    texts = set()
    for value in (1.5, 2.5, 3.5):
        t.fill_(value)
        texts.add(same.check(lambda s, b, h, i, j: s * float(t[0]) + t.tolist()[1] if t[2].item() > 0 else s).text)
    assert len(texts) == 1


def test_numbers_beside_tensors(same: Same) -> None:
    t, gain, size = torch.arange(4.0), 2.0, 3
    function = lambda s, b, h, i, j: s * (t * gain)[h] + t[:size].sum() + torch.full((3,), gain)[h]  # noqa: E731
    for gain, size in ((2.0, 3), (3.0, 2), (4.0, 4)):  # noqa: B007
        same.check(function)
    assert same.traces == 1


def test_a_size_that_became_a_number_is_compared_although_no_variable_changed(same: Same) -> None:
    """The watch over variables does not see that a tensor got longer."""
    t = torch.ones(3, dtype=F64)
    function = lambda s, b, h, i, j: s * sum(range(len(t)))  # noqa: E731
    for _ in range(2):
        same.check(function)
    t.data = torch.ones(5, dtype=F64)
    same.check(function)
    n = torch.tensor(2)
    mask = lambda b, h, i, j: (j < n.item()) | (j > i) if n > 2 else (j <= n.item())  # noqa: E731
    for value in (2, 3, 2, 5):
        n.fill_(value)
        same.check(mask_mod=mask)


@dataclasses.dataclass
class Holder:
    t: Any


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.t = torch.nn.Parameter(torch.tensor([0.5, 0.25, 1.0], dtype=F64))

    def score(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * self.t.exp()[h] + self.t.mean()


class Subclass(torch.Tensor):
    pass


GLOBAL = torch.tensor([0.5, 0.25, 1.0], dtype=F64)


def _scaled(t: Any, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s * t.exp()[h]


def _default(s: Any, b: Any, h: Any, i: Any, j: Any, t: Any = GLOBAL) -> Any:
    return s * t.exp()[h]


def _holders(t: Any) -> dict[str, Function]:
    nested, held = [{"t": t}], Holder(t)
    return {
        "list": lambda s, b, h, i, j: s * nested[0]["t"].exp()[h],
        "object": lambda s, b, h, i, j: s * held.t.exp()[h],
        "if in an object": lambda s, b, h, i, j: s * 2 if held.t[0] > 0.7 else s,
        "partial": functools.partial(_scaled, t),
        "closure": lambda s, b, h, i, j: _scaled(t, s, b, h, i, j),
    }


@pytest.mark.parametrize("name", _holders(None))
@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter, Subclass])
def test_wherever_a_tensor_is_held(same: Same, name: str, kind: type) -> None:
    t = torch.tensor([0.5, 0.25, 1.0], dtype=F64)
    t = t.as_subclass(Subclass) if kind is Subclass else kind(t) if kind is torch.nn.Parameter else t
    for value in (0.5, 1.5):
        t.data.fill_(value)
        same.check(_holders(t)[name])


def test_modules_globals_and_defaults(same: Same) -> None:
    layer = Layer()
    for value in (0.5, 1.5, 0.25):
        layer.t.data.fill_(value)
        GLOBAL.fill_(value)
        for function in (layer.score, _default, lambda s, b, h, i, j: s * GLOBAL.exp()[h]):
            same.check(function)
    assert same.traces == 3


def test_numpy_arrays(same: Same) -> None:
    array = np.array([0.5, 0.25, 1.0])
    held = Holder(array)
    functions: list[Function] = [
        lambda s, b, h, i, j: s * array[1],
        lambda s, b, h, i, j: s * held.t[1] + torch.as_tensor(held.t)[h],
        lambda s, b, h, i, j: s * array[h] + float(array.sum()),
    ]
    for value in (1.0, 2.0, 1.0):
        array *= value
        for function in functions:
            same.check(function)


def _clone(t: Any) -> Any:
    x = t.clone()
    x[0] = 1
    return x


def _alias(t: Any) -> Any:
    x = y = t.clone()
    x += 1
    return y


def _view(t: Any) -> Any:
    x = t.clone()
    y = x.view(-1)
    y += 1
    return x


def _captured(t: Any) -> Any:
    t *= 2
    return t


def _out(t: Any) -> Any:
    x = t.clone()
    torch.add(t, t, out=x)
    return x


def _numpy(t: Any) -> Any:
    t.numpy()[0] = 3
    return t


IN_PLACE = (
    _clone, _alias, _view, _captured, _out, _numpy, lambda t: t.clone().mul_(2),
    lambda t: torch.nn.functional.relu(t.clone(), inplace=True),
)  # fmt: skip


@pytest.mark.parametrize("change", IN_PLACE)
def test_changes_in_place_are_refused(same: Same, change: Function) -> None:
    t = torch.tensor([0.5, 0.25, 1.0], dtype=F64)
    with pytest.raises(TraceError, match=r"in place|read-only"):
        same.check(lambda s, b, h, i, j: s * change(t)[h])
    assert t.tolist() == [0.5, 0.25, 1.0]


def test_changes_in_place_of_values_of_the_function(same: Same) -> None:
    t, n = torch.tensor([0.5, 0.25, 1.0], dtype=F64), 3

    def function(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        x = t * 2
        x += 1
        y = s * x[h]
        other, copy = y, y.clone()
        y -= copy * n
        m = n
        m += 1
        return other * m + n

    same.check(function)


def test_nothing_is_asked_of_tensors_that_are_read_as_they_are(same: Same) -> None:
    t, n = torch.ones(3), 2.0
    assert same.check(lambda s, b, h, i, j: s + t[h] * n + t.shape[0] + t.size(0) + t.numel() + t.dim()).is_plain
    assert not same.check(lambda s, b, h, i, j: s + t.exp()[h]).is_plain
