"""The gallery of published attentions: every variant against its formula, forward and backward, and its pages."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
NAMES = sorted(path.stem for path in GALLERY.glob("*.py") if path.stem != "run" and not path.stem.startswith("_"))


@pytest.fixture(scope="module")
def gallery() -> Any:
    sys.path.insert(0, str(GALLERY))
    try:
        return tuple(importlib.import_module(name) for name in ("_common", "_pages", "_pictures"))
    finally:
        sys.path.remove(str(GALLERY))


@pytest.fixture
def loaded(gallery: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(GALLERY))
    return gallery[0].load


@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward_are_those_of_the_formula(gallery: Any, loaded: Any, name: str) -> None:
    """Odd lengths, and two query heads for each of the keys' where the variant has groups."""
    sizes = gallery[0].Sizes
    for length in (17, 127):
        errors = gallery[0].relative_errors(loaded(name), sizes(length=length), torch.float64)
        assert len(errors) > 1 and max(errors.values()) < 1e-12, errors


@pytest.mark.parametrize("name", ["alibi", "sigmoid", "gla"])
def test_one_position(gallery: Any, loaded: Any, name: str) -> None:
    errors = gallery[0].relative_errors(loaded(name), gallery[0].Sizes(length=1), torch.float64)
    assert errors["o"] < 1e-12 and errors["dv"] < 1e-12


def test_a_wrong_formula_is_found(gallery: Any, loaded: Any) -> None:
    common = gallery[0]
    alibi = loaded("alibi")
    wrong = common.Variant(alibi.run, lambda q, k, v, slopes: alibi.reference(q, k, v, 1.01 * slopes), alibi.inputs)
    assert common.relative_errors(wrong, common.Sizes(), torch.float64)["o"] > 1e-4


def test_pages_are_those_of_the_files(gallery: Any, loaded: Any) -> None:
    """`python examples/gallery/run.py --docs` writes them."""
    _, pages, _ = gallery
    assert sorted(pages.NAMES) == NAMES and len(NAMES) >= 25
    index = (pages.DOCS / "gallery.md").read_text(encoding="utf-8")
    for path, text in pages.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name} is out of date"
        assert text.count("\n") <= 200, f"{path.name} is too long"
    for name in NAMES:
        variant = loaded(name)
        assert variant.title.partition(":")[0] in index and f".md#{name})" in index
        assert variant.paper and "attention(" in variant.code
        assert (pages.FIGURES / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")


def test_pictures_of_every_kind(gallery: Any, loaded: Any) -> None:
    for name in ("streaming_llm", "softpick", "alibi"):
        text = gallery[2].picture(loaded(name))
        assert text == (gallery[1].FIGURES / f"{name}.svg").read_text(encoding="utf-8")


def test_what_the_page_calls_absent_is_refused() -> None:
    """Stick-breaking needs a running sum along the keys."""

    def stick_breaking(s: Any) -> Any:
        return torch.sigmoid(s) * torch.exp(torch.nn.functional.logsigmoid(-s).cumsum(-1))

    with pytest.raises(attn_mlir.TraceError, match="cumsum"):
        attn_mlir.attention(*torch.randn(3, 1, 1, 8, 8), row=stick_breaking)
