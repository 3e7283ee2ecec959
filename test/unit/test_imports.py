"""Imports form no circle: a module is read after those that it builds on."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python/attn_mlir"
# What is known to meet in annotations alone: three pairs of a type and the rules on it.
MET_IN_ANNOTATIONS = {
    "passes.derivation.normal", "passes.derivation.rules", "passes.intervals.expr", "passes.intervals.nodes", "passes.intervals.proof",
    "seeing.picture", "seeing.svg",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """The files of the package by their names in it, through the links in its folder."""
    files = [Path(folder) / name for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names if name.endswith(".py")]
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def statements(body: list[ast.stmt], annotations: bool) -> Iterator[ast.stmt]:
    """What runs when a module is imported, and with `annotations` what type checkers see besides."""
    for each in body:
        yield each
        if isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(each.test) and not annotations:
            continue
        if isinstance(each, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            yield from statements(each.body, annotations)


def imports(known: dict[str, Path], annotations: bool) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {name: set() for name in known}
    for name, path in known.items():
        for each in statements(ast.parse(path.read_text()).body, annotations):
            if isinstance(each, ast.ImportFrom) and each.module and each.module.startswith("attn_mlir"):
                inner = each.module.removeprefix("attn_mlir").removeprefix(".")
                places = {f"{inner}.{alias.name}".removeprefix(".") for alias in each.names}
                found[name] |= {place if place in known else inner for place in places} & known.keys()
    return found


def in_circles(edges: dict[str, set[str]]) -> set[str]:
    """The modules that reach themselves: what is left where those without an arrow in or out are taken away again and again."""
    left = dict(edges)
    while True:
        pointed = set().union(*left.values()) if left else set()
        kept = {name: targets & left.keys() for name, targets in left.items() if targets & left.keys() and name in pointed}
        if kept == left:
            return set(left)
        left = kept


def test_circles_are_found() -> None:
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {"b", "c"}


def test_no_circle_of_imports() -> None:
    known = modules()
    assert len(known) > 500
    assert in_circles(imports(known, annotations=False)) == set()


def test_circles_of_annotations_are_those_known() -> None:
    assert in_circles(imports(modules(), annotations=True)) <= MET_IN_ANNOTATIONS
