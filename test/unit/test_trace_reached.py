"""Values that a function reaches in roundabout ways: each call reads them again, or traces again."""

import collections
import functools
import operator
import sys
import types
from typing import Any

import pytest
import torch

from trace_session import Function, Session


@pytest.fixture
def session() -> Session:
    return Session()


class Box:
    """An object of the user's, with operators of its own."""

    shared = 1.5

    def __init__(self, z: float) -> None:
        self.z = z

    def __getitem__(self, index: int) -> float:
        return self.z

    def __mul__(self, other: Any) -> Any:
        return other * self.z

    def __contains__(self, item: float) -> bool:
        return item < self.z

    def half(self) -> float:
        return self.z / 2


class SubBox(Box):
    shared = 2.5

    def half(self) -> float:
        return super().half() + 1


class Table(dict[str, float]):
    z = 2.0

    def __missing__(self, key: str) -> float:
        return self.z


class Weight(float):
    z: float

    def __mul__(self, other: Any) -> Any:
        return other * self.z

    __rmul__ = __mul__


def _weight() -> Weight:
    weight = Weight(1.0)
    weight.z = 2.0
    return weight


GLOBAL = Box(2.0)
read = getattr


class Maker:
    def __init__(self) -> None:
        self.gain = GLOBAL.z


def gained(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * gained.z  # type: ignore[attr-defined]


SETTINGS = types.ModuleType("settings_of_a_test")
sys.modules[SETTINGS.__name__] = SETTINGS


def matched(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    match GLOBAL:
        case Box(z=gain):
            return score * gain
    return score


def imported(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    import settings_of_a_test  # type: ignore[import-not-found]

    return score * settings_of_a_test.z


def _tensor() -> torch.Tensor:
    tensor = torch.ones(3)
    tensor.z = 2.0  # type: ignore[attr-defined]
    return tensor


# Programs whose result depends on the attribute z of an object that Python code reaches in a roundabout way.
REACHED: dict[str, tuple[Any, Function]] = {
    "getattr": (GLOBAL, lambda s, b, h, i, j: s * getattr(GLOBAL, "z")),  # noqa: B009
    "getattr by another name": (GLOBAL, lambda s, b, h, i, j: s * read(GLOBAL, "z")),
    "globals": (GLOBAL, lambda s, b, h, i, j: s * globals()["GLOBAL"].z),
    "vars": (GLOBAL, lambda s, b, h, i, j: s * vars(GLOBAL)["z"]),
    "__dict__": (GLOBAL, lambda s, b, h, i, j: s * GLOBAL.__dict__["z"]),
    "eval": (GLOBAL, lambda s, b, h, i, j: s * eval("GLOBAL.z")),
    "attrgetter": (GLOBAL, lambda s, b, h, i, j: s * operator.attrgetter("z")(GLOBAL)),
    "modules": (GLOBAL, lambda s, b, h, i, j: s * sys.modules[__name__].GLOBAL.z),
    "import": (SETTINGS, imported),
    "match": (GLOBAL, matched),
    "__getitem__": (GLOBAL, lambda s, b, h, i, j: s * GLOBAL[0]),
    "__mul__": (GLOBAL, lambda s, b, h, i, j: GLOBAL * s),
    "__contains__": (GLOBAL, lambda s, b, h, i, j: s if 3.0 in GLOBAL else -s),
    "__init__": (GLOBAL, lambda s, b, h, i, j: s * Maker().gain),
    "inherited operator": (box := SubBox(2.0), lambda s, b, h, i, j: s * box[0]),
    "super": (upper := SubBox(2.0), lambda s, b, h, i, j: s * upper.half()),
    "bound builtin": (table := {"z": 2.0}, lambda s, b, h, i, j, get=table.get: s * get("z")),
    "dict subclass": (missing := Table(), lambda s, b, h, i, j: s * missing["a"]),
    "float subclass": (weight := _weight(), lambda s, b, h, i, j: weight * s),
    "user dict": (user := collections.UserDict(z=2.0), lambda s, b, h, i, j: s * user["z"]),
    "attribute of a function": (gained, gained),
    "attribute of a tensor": (tensor := _tensor(), lambda s, b, h, i, j: s * tensor.z),
}


@pytest.mark.parametrize("name", REACHED)
def test_values_reached_in_roundabout_ways_are_read_anew(session: Session, name: str) -> None:
    owner, score_mod = REACHED[name]
    texts = []
    for z in (2.0, 7.0):
        if isinstance(owner, (dict, collections.UserDict)) and not isinstance(owner, Table):
            owner["z"] = z
        else:
            owner.z = z
        texts.append(session.call(score_mod)[0].text)
    assert texts[0] != texts[1]


def test_what_the_class_holds_is_read_besides_the_objects_own(session: Session) -> None:
    box = SubBox(2.0)
    box.shared = 9.0
    mod = lambda s, b, h, i, j: s * type(box).shared  # noqa: E731
    first, _ = session.call(mod)
    SubBox.shared = 3.5
    try:
        assert session.call(mod)[0].text != first.text
    finally:
        SubBox.shared = 2.5


def test_functions_of_two_partials_are_told_apart(session: Session) -> None:
    def scaled(gain: Any, score: Any) -> Any:
        return score * gain[0]

    def make(one: float, two: float) -> Function:
        first, second = functools.partial(scaled, (one,)), functools.partial(scaled, (two,))
        return lambda score, b, h, q_idx, kv_idx: first(score) + second(score)

    texts = {session.call(make(one, two))[0].text for one, two in ((2.0, 3.0), (2.0, 4.0), (5.0, 3.0))}
    assert len(texts) == 3


def test_objects_with_operators_are_found_again(session: Session) -> None:
    box = Box(2.0)
    mod = lambda s, b, h, i, j: box * s + box[0]  # noqa: E731
    assert session.call(mod)[0] is session.call(mod)[0]
    assert session.traces == 1
