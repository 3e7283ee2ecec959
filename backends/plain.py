"""Reads plain data, as JSON gives it, back into the dataclasses that `dataclasses.asdict` made it of."""

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def read(kind: type[T], value: Any) -> T:
    """`value` as a `kind`: a dataclass, a tuple of one type or of several, a dict, an optional type, or a plain type.

    Raises TypeError for a value of another type, and LookupError where a field is missing.
    """
    return _read(kind, value)


def _read(kind: Any, value: Any) -> Any:
    if is_dataclass(kind):
        return _dataclass(kind, value)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return _tuple(arguments, value)
    if origin is dict and isinstance(value, dict):
        return {_read(arguments[0], name): _read(arguments[1], each) for name, each in value.items()}
    if origin is not None and origin is not dict:  # a union of plain types, and at most one that is not
        plain = [each for each in arguments if type(value) is each]
        others = [each for each in arguments if each is not NoneType]
        return value if plain else _read(others[-1], value)
    if type(value) is kind:  # true is no number
        return value
    raise TypeError(f"expected {kind}, got {type(value).__name__}")


def _dataclass(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"expected the fields of {kind.__name__}, got {type(value).__name__}")
    hints, needed = _fields(kind)
    if not value.keys() <= hints.keys():
        raise TypeError(f"{kind.__name__} has no field {', '.join(map(str, value.keys() - hints.keys()))}")
    if not needed <= value.keys():
        raise KeyError(", ".join(needed - value.keys()))
    return kind(**{name: _read(hints[name], each) for name, each in value.items()})


def _tuple(arguments: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    kinds = arguments[:1] * len(value) if arguments[1:] == (...,) else arguments
    if len(kinds) != len(value):
        raise TypeError(f"expected {len(kinds)} elements, got {len(value)}")
    return tuple(_read(kind, each) for kind, each in zip(kinds, value, strict=True))


@cache
def _fields(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a dataclass's fields by name, and which have no default."""
    needed = frozenset(each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING)
    return get_type_hints(kind), needed
