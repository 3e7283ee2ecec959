"""The generated reference: pages that nobody makes any more go, each op and pass has one place, and the indexes lead to it."""

import re
from pathlib import Path

import pytest

from attn_mlir.dialects import DIALECTS
from attn_mlir.registry import registry
from attn_mlir.tools import gen_docs, gen_stub, reference_pages


def test_files_are_written_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gen_stub, "PATH", tmp_path / "stub.pyi")
    folder = tmp_path / "reference"
    assert gen_docs.main([str(folder)]) == 0
    assert gen_docs.main(["--check", str(folder)]) == 0
    old, written = folder / "attn" / "old.md", folder / "by_hand.md"
    old.write_text((folder / "attn.md").read_text())
    written.write_text("# Not generated\n")
    assert gen_docs.main(["--check", str(folder)]) == 1
    assert "old.md: out of date" in capsys.readouterr().err
    assert gen_docs.main([str(folder)]) == 0
    assert not old.exists() and written.exists()


def test_every_op_and_pass_has_one_heading() -> None:
    headings = [heading for text in gen_docs.pages().values() for heading in re.findall(r"^## `([\w.-]+)`$", text, flags=re.MULTILINE)]
    ops = [op.OPERATION_NAME for dialect in DIALECTS for op in dialect.operations]
    assert sorted(headings) == sorted([*ops, *registry().passes])


def test_a_module_without_a_page_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reference_pages.DIALECTS, "tile", reference_pages.DIALECTS["tile"][:1])
    with pytest.raises(ValueError, match="is on no page of"):
        gen_docs.pages()
