"""Every rule that a verifier enforces has a test that breaks it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXPECTED = re.compile(r"expected-error[^{]*\{\{(.*?)\}\}")
# Says that a verifier itself is wrong, so that no IR should produce it.
NOT_TESTABLE = {"cannot be verified: "}


def guards() -> Iterator[tuple[str, str]]:
    """(file:line, pattern of the message) of each call `check(op, holds, message)` in the dialects."""
    for path in sorted((ROOT / "dialects").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check":
                pattern = _pattern(node.args[2])
                if not any(pattern.startswith(re.escape(text)) for text in NOT_TESTABLE):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", pattern


def _pattern(message: ast.expr) -> str:
    match message:
        case ast.Constant(value=str(text)):
            return re.escape(text)
        case ast.JoinedStr(values=parts):
            return "".join(_pattern(part) for part in parts)
    return ".+"


def expectations() -> list[str]:
    return [text for path in (ROOT / "test" / "dialects").rglob("*.mlir") for text in EXPECTED.findall(path.read_text())]


@pytest.mark.parametrize(("where", "pattern"), [pytest.param(*g, id=g[0]) for g in guards()])
def test_a_test_expects_the_message(where: str, pattern: str) -> None:
    assert any(re.fullmatch(rf"'[\w.]+' {pattern}", text) for text in expectations()), f"no expected-error for the check at {where}"


def test_guards_are_found() -> None:
    """The search itself works; otherwise the test above would pass for want of cases."""
    assert len(list(guards())) > 50
