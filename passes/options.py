"""Pass options in text form: `{block-q=64 sizes=1,2 flag}` to and from dataclass fields."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable
from typing import Any

from attn_mlir.errors import ArgumentError
from attn_mlir.passes.base import Pass

_OPENING, _CLOSING = "({[", ")}]"
_FORMER = {"remainder": "residual"}
"""What options were called in pipelines that were saved before."""


class PipelineError(ArgumentError):
    """A pipeline names an unknown pass or option, or does not parse."""


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for a known word that is close to `word`, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def split(text: str, separators: str) -> list[str]:
    """Splits `text` at separators outside all brackets."""
    parts, start, open_ = [], 0, []
    for i, char in enumerate(text):
        if char in _OPENING:
            open_.append(char)
        elif char in _CLOSING:
            if not open_ or _OPENING.index(open_.pop()) != _CLOSING.index(char):
                raise PipelineError(f"'{char}' without its opening bracket in '{text}'")
        elif char in separators and not open_:
            parts.append(text[start:i].strip())
            start = i + 1
    if open_:
        raise PipelineError(f"'{open_[-1]}' is never closed in '{text}'")
    return [*parts, text[start:].strip()]


def parse_options(cls: type[Pass], text: str) -> Pass:
    """Makes the pass from `key=value` pairs separated by blanks; a boolean may stand alone."""
    known = {field.name.replace("_", "-"): field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for option in filter(None, split(text, " \t\n")):
        key, equals, value = option.partition("=")
        if key not in known:
            has = f"it has: {', '.join(known)}" if known else "it has none"
            hint = f"; it is called '{_FORMER[key]}' now" if _FORMER.get(key) in known else suggest(key, known)
            raise PipelineError(f"pass '{cls.name}' has no option '{key}' ({has}){hint}")
        name = known[key].name
        if name in values:
            raise PipelineError(f"pass '{cls.name}' got the option '{key}' twice")
        values[name] = _parse_value(f"option '{key}' of pass '{cls.name}'", hints[name], value if equals else None)
    missing = [key for key, field in known.items() if field.name not in values and default_of(field) is dataclasses.MISSING]
    if missing:
        raise PipelineError(f"pass '{cls.name}' needs its option '{missing[0]}'")
    try:
        return cls(**values)
    except ValueError as error:
        raise PipelineError(f"pass '{cls.name}': {error}") from None


def spec(pass_: Pass) -> str:
    """The pipeline element that makes `pass_`: its name, and the options that differ from their defaults."""
    return pass_.name + _braced(options_of(pass_))


def options_of(pass_: Pass) -> list[str]:
    """The options of a pass that differ from their defaults, as they are written."""
    given = [(f, getattr(pass_, f.name)) for f in dataclasses.fields(pass_)]
    return [f"{f.name.replace('_', '-')}={print_value(value)}" for f, value in given if value != default_of(f)]


def option_names(cls: type[Pass]) -> list[str]:
    """The options that a pass has, as they are written."""
    return [field.name.replace("_", "-") for field in dataclasses.fields(cls)]


def full_spec(cls: type[Pass]) -> str:
    """The element with every option at its default, for documentation."""
    shown = []
    for field in dataclasses.fields(cls):
        default = default_of(field)
        shown.append(f"{field.name.replace('_', '-')}={'<required>' if default is dataclasses.MISSING else print_value(default)}")
    return cls.name + _braced(shown)


def type_name(cls: type[Pass], field: str) -> str:
    """How the documentation names the type of an option."""
    hint = typing.get_type_hints(cls)[field]
    return getattr(hint, "__name__", str(hint)) if not typing.get_args(hint) else str(hint).replace("typing.", "")


def _braced(options: Iterable[str]) -> str:
    text = " ".join(options)
    return f"{{{text}}}" if text else ""


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of an option, MISSING if it is required."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def print_value(value: Any) -> str:
    """A value as it is written in a pipeline."""
    match value:
        case bool():
            return str(value).lower()
        case None:
            return "none"
        case tuple():
            return f"{{{','.join(map(print_value, value))}}}"
        case str() if value == "" or any(c in value for c in " \t\n,{}()[]=") or value in ("none",):
            return f"{{{value}}}"
    return str(value)


def _parse_value(what: str, hint: Any, text: str | None) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if text == "none" and type(None) in arguments:
            return None
        return _parse_value(what, next(a for a in arguments if a is not type(None)), text)
    if hint is bool:
        return _parse_bool(what, text)
    if text is None:
        raise PipelineError(f"{what} needs a value")
    if origin is tuple:
        items = split(text[1:-1] if text.startswith("{") else text, ",")
        return tuple(_parse_value(what, arguments[0], item) for item in items if item or len(items) > 1)
    if origin is typing.Literal:
        if text not in arguments:
            raise PipelineError(f"{what} is one of {', '.join(arguments)}; got '{text}'{suggest(text, arguments)}")
        return text
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            kind = "an integer" if hint is int else "a number"
            raise PipelineError(f"{what} takes {kind}, got '{text}'") from None
    return text[1:-1] if text.startswith("{") and text.endswith("}") else text


def _parse_bool(what: str, text: str | None) -> bool:
    if text in (None, "true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise PipelineError(f"{what} is true or false, got '{text}'")
