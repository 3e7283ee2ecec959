"""The README and the pages of docs/: links lead somewhere, Python blocks run, quoted output and commands are current."""

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "AGENTS.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The text of a page without its fenced blocks."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page: lower case, without punctuation, hyphens for spaces."""
    headings = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links(page: Path) -> None:
    assert not list(broken_links(page))


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` heading\n[ok](#a-b-heading) [gone](nowhere.md) [no](page.md#other) [web](https://example.org/x#y)\n")
    assert list(broken_links(page)) == ["nowhere.md: no such file", "page.md#other: no such heading"]


def site_pages() -> list[str]:
    """The pages of the site in the order of its navigation, as paths from the root."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    outside = {"readme.md": "README.md", "agents.md": "AGENTS.md"}
    return [outside.get(page, f"docs/{page}") for page in re.findall(r"^ *- (\S+\.md)$", nav, flags=re.MULTILINE)]


def test_navigation_names_every_page_once() -> None:
    assert sorted(site_pages()) == sorted(map(named, PAGES))


def test_index_has_the_order_of_the_navigation() -> None:
    index = ROOT / "docs/index.md"
    links = re.findall(r"\]\(([^)]+\.md)\)", index.read_text())
    assert ["docs/index.md", *[named((index.parent / link).resolve()) for link in links]] == site_pages()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_length(page: Path) -> None:
    """A page is read to its end, also of the reference, which is generated (`tools/reference_pages.py`)."""
    most = 150 if page.name == "README.md" else 200
    assert len(page.read_text().splitlines()) <= most


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "notes"], ids=named)
def test_notes_are_dated(page: Path) -> None:
    assert re.search(r"\b20\d\d-\d\d-\d\d\b", page.read_text().splitlines()[0])


def test_readme_ends_with_what_is_not_there() -> None:
    last = re.findall(r"^## (.*)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)[-1]
    assert last == "What is there, what is not, and what comes"


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def relu_normalised(s: Any) -> Any:
    w = s.max(0.0)
    return w / (w.sum() + 1e-6)


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + 0.5 ** (h + 1) * (kv_idx - q_idx)


def given(page: str) -> dict[str, Any]:
    """The names that the blocks of a page take from their reader."""
    names: dict[str, Any] = {"torch": torch, "attn_mlir": attn_mlir, "causal": causal, "alibi": alibi, "relu_normalised": relu_normalised}
    match page:
        case "docs/several-scores.md":
            names["q"], names["q2"] = torch.randn(2, 2, 4, 50, 32)
            names["k"], names["k2"], names["v"] = torch.randn(3, 2, 4, 50, 32)
            names["heads"] = 4
        case "docs/rotary.md":
            names["q"], names["k"], names["v"] = torch.randn(3, 2, 4, 50, 32)
            names["cos"], names["sin"] = torch.randn(2, 50, 16)
        case "docs/ahead-of-time.md":
            names["rates"] = torch.rand(4)
        case _:
            pass
    return names


# Blocks that are not programs for a CPU: what is missing here, and how the block is known.
APART = {
    "README.md": {'x.to("cuda"': "a GPU"},
    "docs/ahead-of-time.md": {"tvm_ffi.load_module": "test_ahead_host runs it", "torch.export.export": "test_ahead_operators runs it"},
    "docs/amd.md": {'device="hip-emulated"': "a clang for AMD GPUs; test_emulated_devices runs it"},
    "docs/extending.md": {"class FoldScales": "a sketch of a pass"},
    "docs/serving.md": {"row=..., score_mod=...": "a sketch of a call"},
    "docs/tuning.md": {"tune=True": "a sketch of calls; test_cpu_tuning runs them"},
}


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text()) and "gallery" not in page.parts], ids=named)
def test_python_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page, in one namespace, as a reader would paste them. The gallery's come from files that test_gallery runs."""
    monkeypatch.chdir(tmp_path)
    names, apart = given(named(page)), dict(APART.get(named(page), {}))
    for number, block in enumerate(BLOCK.findall(page.read_text())):
        reasons = [mark for mark in apart if mark in block]
        for mark in reasons:
            del apart[mark]
        if not reasons:
            exec(compile(block, f"{named(page)}, block {number}", "exec"), names)
    assert not apart, "blocks that the page no longer has"


def quoted(text: str, first: str) -> str:
    """The indented block of a page that begins with the line `first`."""
    lines = text.splitlines()
    begin = lines.index(f"    {first}")
    end = next(i for i in range(begin, len(lines)) if not lines[i].startswith("    "))
    return "\n".join(line[4:] for line in lines[begin:end])


def test_readme_quotes_explain() -> None:
    told = attn_mlir.Attention(row=relu_normalised).explain()
    readme = (ROOT / "README.md").read_text()
    assert quoted(readme, "derivation") in textwrap.dedent(told[told.index("  derivation") :])
    for line in quoted(readme, "backward").splitlines():
        assert line.strip() == "..." or re.sub(r"[\d.]+e-\d+$", "", line) in told


def test_readme_quotes_commands() -> None:
    """Every command for the tools that the README shows ends well."""
    commands = re.findall(r"^    (attn-(?:opt|run) .*?)(?:\s+#.*)?$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        tool, *arguments = shlex.split(command)
        module = f"attn_mlir.tools.{tool.replace('-', '_')}"
        done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
