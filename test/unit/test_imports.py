"""Imports form no circle: a module is read after those that it builds on."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python/attn_mlir"
_PYTHON = str(PACKAGE.parent)


def modules() -> dict[str, Path]:
    """The files of the package by their names in it, through the links in its folder."""
    files = [Path(folder) / name for folder, _, names in os.walk(PACKAGE, followlinks=True) for name in names if name.endswith(".py")]
    return {".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def statements(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """What runs when a module is imported."""
    for each in body:
        yield each
        if isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(each.test):
            continue
        if isinstance(each, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            yield from statements(each.body)


def imported(node: ast.AST) -> set[str]:
    """The modules that an import, or a call of `import_module` with a name, may name."""
    match node:
        case ast.ImportFrom(module=str(module), names=names):
            return {module, *(f"{module}.{alias.name}" for alias in names)}
        case ast.Import(names=names):
            return {alias.name for alias in names}
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name))]):
            return {name}
    return set()


def imports(known: dict[str, Path], everywhere: bool) -> dict[str, set[str]]:
    """The modules that each one imports: at import time, or `everywhere`, in functions and for annotations, too."""
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        nodes = ast.walk(tree) if everywhere else statements(tree.body)
        places = {place.removeprefix("attn_mlir.") for node in nodes for place in imported(node) if place.startswith("attn_mlir.")}
        inner = {place for place in places if place in known}
        found[name] = {place for place in inner if not any(other.startswith(f"{place}.") for other in inner)} - {name}
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
    assert in_circles(imports(known, everywhere=False)) == set()


def test_no_circle_is_hidden_in_functions_or_annotations() -> None:
    assert in_circles(imports(modules(), everywhere=True)) == set()


def test_the_api_does_without_dynamo() -> None:
    """Which takes three times as long to import as all of ours; torch.compile imports it."""
    names = "attention, linear_attention, flex_attention, create_block_mask, AttentionEngine, LinearAttentionEngine"
    code = f"import sys\nfrom attn_mlir import {names}\nprint('torch._dynamo' in sys.modules)"
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": _PYTHON}
    )
    assert made.stdout == "False\n"
