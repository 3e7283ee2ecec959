"""Pages of `report` as tests read them: their elements and data, and what a script finds in a browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


class Page(HTMLParser):
    """The elements of a page, and its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = text
        self.feed(text)
        found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
        assert len(found) == 1
        self.data = json.loads(found[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def stage(self, name: str, run: str = "forward") -> dict[str, Any]:
        return next(stage for stage in self.data["stages"] if (stage["run"], stage["name"]) == (run, name))

    def source(self, text: str) -> tuple[int, list[int]]:
        """The line of the functions that holds a text, and its links."""
        for source in self.data["sources"]:
            for i, line in enumerate(source["lines"]):
                if text in line:
                    return source["first"] + i, source["links"][i]
        raise AssertionError(text)


def linked(stage: dict[str, Any], links: list[int]) -> list[str]:
    """The lines of a stage that share a link."""
    return [line.strip() for line, found in zip(stage["lines"], stage["links"], strict=True) if set(found) & set(links)]


def in_browser(path: Path, script: str, tmp_path: Path) -> dict[str, Any]:
    """What a script (a block that returns an object) finds on a page in headless Chromium; asserts that the page has no errors."""
    text = path.read_text()
    text = text.replace("<head>", "<head><script>window.caught = []; onerror = (m) => window.caught.push(String(m));</script>", 1)
    ending = f"""const found = (() => {script})();
const out = document.createElement("pre");
out.id = "found";
out.textContent = JSON.stringify({{ ...found, errors: window.caught, ready: document.documentElement.dataset.ready }});
document.body.append(out);"""
    (tmp_path / "page.html").write_text(text.replace("</body>", f"<script>{ending}</script></body>"))
    profile = tmp_path / "profile"
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--virtual-time-budget=5000"]
    ran = subprocess.run([*command, "--dump-dom", (tmp_path / "page.html").as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="found">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found is not None, ran.stderr[-2000:]
    result = json.loads(found[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))
    assert result["errors"] == [] and result["ready"] == "true"
    return result
