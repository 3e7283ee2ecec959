"""Hooks of mkdocs: README.md and AGENTS.md are pages, and files outside of docs/ that pages link to come with the site."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": "readme.md", "AGENTS.md": "agents.md"}
"""Pages that lie outside of docs/, and what they are called on the site."""
_LINK = re.compile(r"\]\(([^)\s#:]+)((?:#[^)\s]*)?)\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages and every file that one of them, or a page of docs/, links to."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_rewritten((ROOT / source).read_text(encoding="utf-8"), source)))
    linked = {target for path in (ROOT / "docs").rglob("*.md") for target in _outside(path)}
    linked |= {target for source in PAGES for target in _outside(ROOT / source)}
    for target in sorted(linked):
        files.append(File.generated(config, f"source/{target}.txt", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **others: Any) -> str:
    """Lets links of a page of docs/ that leave the folder lead to where their targets are on the site."""
    return markdown if page.file.src_uri in PAGES.values() else _rewritten(markdown, f"docs/{page.file.src_uri}")


def _target(link: str, source: str) -> str:
    """What a link in `source` leads to, relative to the root of the repository."""
    return (ROOT / source).parent.joinpath(link).resolve().relative_to(ROOT).as_posix()


def _outside(path: Path) -> list[str]:
    """The files outside of docs/ that a page links to, other than pages."""
    source = path.relative_to(ROOT).as_posix()
    found = [_target(link, source) for link, _ in _LINK.findall(path.read_text(encoding="utf-8"))]
    return [target for target in found if not target.startswith("docs/") and target not in PAGES and (ROOT / target).is_file()]


def _rewritten(text: str, source: str) -> str:
    """A page with its links as they are on the site."""
    own = PurePosixPath(PAGES[source] if source in PAGES else PurePosixPath(source).relative_to("docs"))

    def lead(match: re.Match[str]) -> str:
        target = _target(match[1], source)
        if (ROOT / target).is_dir():
            return f"]({_up(own)}{_first_page(target)})"
        place = PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else f"source/{target}.txt")
        return f"]({_up(own)}{place}{match[2]})"

    return _LINK.sub(lead, text)


def _up(page: PurePosixPath) -> str:
    return "../" * (len(page.parts) - 1)


def _first_page(folder: str) -> str:
    """A folder has no page: docs/reference leads to its first one, others to the README."""
    return "reference/attn.md" if folder == "docs/reference" else "readme.md"
