"""The page of a report as HTML: everything in one file, nothing from a network."""

import html
import json
import textwrap
from pathlib import Path
from typing import Any

from attn_mlir.backends.seen import Timeline
from attn_mlir.seeing.picture import MaskPicture
from attn_mlir.seeing.timeline import draw

_HERE = Path(__file__).parent
_NARROWEST, _WIDEST, _CYCLE = 1200, 6000, 0.16
"""Pixels of a timeline, and of a cycle in it."""


def page(data: dict[str, Any], texts: dict[str, Any]) -> str:
    """The HTML text. `data` is what the script shows and links, `texts` the rest."""
    sections = [
        ("code", "Code", _code()),
        ("derivation", "Derivation", _derivation(texts["explained"])),
        *([("mask", "Mask", _mask(texts["picture"]))] if texts["picture"] is not None else []),
        *([("timeline", "Timeline", _timelines(texts["timelines"]))] if texts["timelines"] else []),
        ("kernels", "Kernels", _kernels(texts["kernels"], texts["floor"])),
    ]
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    body = "\n".join(f'<section id="{name}"><h2>{title}</h2>\n{text}</section>' for name, title, text in sections)
    title = html.escape(texts["title"])
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{(_HERE / "page.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<header><div><h1>{title}</h1><p>{html.escape(texts["form"])}</p></div><nav>{links}</nav></header>
<main>
{body}
</main>
<script type="application/json" id="data">{_json(data)}</script>
<script>
{(_HERE / "page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def _json(data: Any) -> str:
    """JSON that no HTML parser takes for an end or a beginning of anything."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return (
        text.replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )


def _code() -> str:
    panes = "".join(
        f'<div class="pane"><div class="bar"><select id="stage-{side}" aria-label="stage on the {side}"></select>'
        f'<span class="about" id="about-{side}"></span></div><div class="listing" id="listing-{side}" tabindex="0"></div></div>'
        for side in ("left", "right")
    )
    return (
        '<p class="hint">Point at a line: what comes from the same place of your functions, or from the same line of the schedule, lights '
        "up in the other panes. Click to keep it and to scroll the others there; Escape lets go.</p>\n"
        '<div class="panes"><div class="pane source"><div class="bar"><b>your functions</b></div><div class="listing" id="listing-source" '
        f'tabindex="0"></div></div>{panes}</div>\n<p id="status" class="status" aria-live="polite">&nbsp;</p>\n'
    )


def _derivation(explained: str) -> str:
    blocks = [block for block in explained.strip("\n").split("\n\n") if block.strip()]
    return f'<div class="cards">{"".join(f"<pre>{html.escape(textwrap.dedent(block))}</pre>" for block in blocks)}</div>\n'


def _mask(picture: MaskPicture) -> str:
    rows = "".join(
        f"<details><summary>b = {panel.b}, h = {panel.h}: {html.escape(picture.summary(panel))}</summary>"
        f"<pre>{html.escape(chr(10).join(picture.loops(panel, 64)))}</pre></details>"
        for panel in picture.panels
    )
    return f'<div class="picture">{picture.svg()}</div>\n{rows}\n'


_TIME = (
    "Time is that of a model of one multiprocessor, in cycles; nothing of it was measured. Roles take their ops in the order in which this "
    "time lets them, and wait where the barriers of the kernel say so. Point at an event for its op; click it to go to its lines."
)


def _timelines(timelines: list[tuple[str, Timeline]]) -> str:
    """The timelines of kernels in order: the n-th drawing is the n-th of the data's."""
    parts = []
    for number, (run, each) in enumerate(timelines):
        if not each.events:
            parts.append(f'<p class="why">{html.escape(f"{run}: no timeline: {each.why}")}</p>')
            continue
        width = max(_NARROWEST, min(_WIDEST, round(max(event.end for event in each.events) * _CYCLE)))
        model = "".join(f"<li>{html.escape(line)}</li>" for line in each.model)
        parts.append(
            f'<p class="hint">{html.escape(run)}. {_TIME}</p>\n<div class="timeline" data-timeline="{number}" tabindex="0">'
            f'{draw(each, width)}</div>\n<p class="status told" aria-live="polite">&nbsp;</p>\n'
            f"<details><summary>What the time is made of</summary><ul>{model}</ul></details>"
        )
    return "\n".join(parts) + "\n"


def _kernels(kernels: list[tuple[str, str, Any]], floor: list[tuple[str, str]]) -> str:
    tables = [_table(f"{run}: {name}", known) for run, name, known in kernels]
    if floor:
        tables.append(_table("floor, at the lengths of the mask's picture", floor))
    return f'<div class="tables">{"".join(tables)}</div>\n'


def _table(title: str, rows: Any) -> str:
    cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
    return f"<table><caption>{html.escape(title)}</caption>{cells}</table>"
