"""Draws the picture of a mask as SVG text, without a library. Colours follow a light or a dark page."""

from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from attn_mlir.seeing.panels import Panel, Picture, levels, told

_SIDE, _LEFT, _TOP, _GAP, _LEAST = 384, 74, 66, 46, 48
_STYLE = """
.am-paper{fill:#fff}.am-frame{fill:#f1f3f5;stroke:#868e96}.am-text{fill:#212529}.am-small{fill:#5c636a;font-size:11px}
.am-part{fill:#f08c00}.am-whole{fill:#1c7ed6}.am-score-low{fill:#7048e8}.am-score-high{fill:#0b8a5f}
.am-line{fill:none;stroke:#212529;stroke-width:1}.am-inner{stroke-dasharray:3 2}.am-row{fill:#000;fill-opacity:0}
.am-row:hover{fill-opacity:.14}
@media (prefers-color-scheme:dark){.am-paper{fill:#16191d}.am-frame{fill:#23272c;stroke:#868e96}.am-text{fill:#e9ecef}
.am-small{fill:#adb5bd}.am-line{stroke:#f1f3f5}.am-row{fill:#fff}.am-part{fill:#ffa94d}.am-whole{fill:#339af0}
.am-score-low{fill:#9775fa}.am-score-high{fill:#38d9a9}}
"""
_OPACITY = (0.0, 0.3, 0.5, 0.75, 1.0)


def draw(picture: Picture) -> str:
    """The SVG text."""
    width, height = _SIDE, max(_LEAST, min(_SIDE, round(_SIDE * picture.q_len / picture.kv_len)))
    columns = [(panel, kind) for panel in picture.panels for kind in ("mask", "score") if kind == "mask" or panel.scores is not None]
    total_width, total_height = 20 + len(columns) * (_LEFT + width + _GAP), _TOP + height + 78
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width} {total_height}" width="{total_width}" height="{total_height}" '
        'font-family="system-ui,sans-serif" font-size="13" role="img">',
        f"<title>{escape(picture._head())}</title><style>{_STYLE}</style>",
        f'<rect class="am-paper" width="{total_width}" height="{total_height}"/>',
        f'<text class="am-text" x="20" y="24" font-weight="600">{escape(picture._head())}</text>',
    ]
    for number, (panel, kind) in enumerate(columns):
        left = 20 + number * (_LEFT + width + _GAP) + _LEFT
        title = f"b = {panel.b}, h = {panel.h}"
        parts.append(f'<g transform="translate({left} {_TOP})"><rect class="am-frame" width="{width}" height="{height}"/>')
        if kind == "mask":
            parts += _mask(picture, panel, width, height)
            lines = [picture.summary(panel).partition("; ")[0]]
        else:
            assert panel.scores is not None
            parts += _scores(panel.scores, width, height)
            title, lines = f"score_mod, {title}", told(panel.scores).split("; ")
        parts += _frame(picture, title, lines, width, height, kind)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>"]) + "\n"


def _mask(picture: Picture, panel: Panel, width: int, height: int) -> Iterator[str]:
    survey = panel.survey
    edges = [
        np.minimum(np.arange(0, count + cell, cell) * block, length) * (size / length)
        for count, cell, block, length, size in zip(
            survey.shape, survey.cell, picture.block, (picture.q_len, picture.kv_len), (height, width), strict=True
        )
    ]
    level = levels(survey)
    for shade in range(1, 6):
        path = _path(level == shade, *edges)
        if path:
            style = "am-whole" if shade == 5 else f'am-part" fill-opacity="{_OPACITY[shade]}'
            yield f'<path class="{style}" d="{path}"/>'
    starts = np.arange(0, survey.shape[0], survey.cell[0])
    merge = (np.minimum, np.maximum, np.minimum, np.maximum)
    merged = [f.reduceat(survey.bounds[:, i], starts) for i, f in enumerate(merge)]
    scale = width / picture.kv_len
    for name, bound in (("begin", merged[0]), ("end", merged[3])):
        yield f'<path class="am-line" d="{_steps(bound * scale, edges[0])}"><title>{name} of the loop</title></path>'
    inner = merged[1] < merged[2]
    for bound in (merged[1], merged[2]):
        drawn = _steps(np.where(inner, bound, np.nan) * scale, edges[0])
        if drawn:
            yield f'<path class="am-line am-inner" d="{drawn}"/>'
    for row, (top, bottom) in enumerate(zip(edges[0], edges[0][1:], strict=False)):
        first = row * survey.cell[0]
        last = min(first + survey.cell[0], survey.shape[0]) - 1
        text = picture.loop(panel, first) + (f"\n...\n{picture.loop(panel, last)}" if last > first else "")
        yield f'<rect class="am-row" y="{top:.4g}" width="{width}" height="{bottom - top:.4g}"><title>{escape(text)}</title></rect>'


def _scores(scores: Any, width: int, height: int) -> Iterator[str]:
    """Samples above the score in one colour, those below in another, in four shades."""
    change = np.where(np.isfinite(scores.values), scores.values - scores.score, 0.0)
    most = np.abs(change).max()
    rows, columns = change.shape
    edges = [np.linspace(0, size, count + 1) for size, count in ((height, rows), (width, columns))]
    shade = np.ceil(4 * np.abs(change) / most).astype(int) if most else np.zeros(change.shape, int)
    for sign, name in ((-1, "low"), (1, "high")):
        for level in range(1, 5):
            path = _path((shade == level) & (np.sign(change) == sign), *edges)
            if path:
                yield f'<path class="am-score-{name}" fill-opacity="{_OPACITY[level]}" d="{path}"/>'


def _path(present: Any, rows: Any, columns: Any) -> str:
    """Rectangles around what is present: runs of a row, joined where rows below have the same."""
    found: list[str] = []
    open_: dict[tuple[int, int], int] = {}
    for row in range(present.shape[0] + 1):
        edge = np.diff(np.concatenate([[0], present[row].astype(np.int8), [0]])) if row < present.shape[0] else np.zeros(1)
        runs = set(zip(np.flatnonzero(edge == 1).tolist(), np.flatnonzero(edge == -1).tolist(), strict=True))
        for run in [run for run in open_ if run not in runs]:
            x, y = columns[run[0]], rows[open_.pop(run)]
            found.append(f"M{x:.5g} {y:.5g}H{columns[run[1]]:.5g}V{rows[row]:.5g}H{x:.5g}Z")
        for run in runs:
            open_.setdefault(run, row)
    return "".join(found)


def _steps(values: Any, edges: Any) -> str:
    """A line that stays at a value over each row; nothing where it is none."""
    parts, drawing, last = [], False, None
    for value, top, bottom in zip(values, edges, edges[1:], strict=False):
        if np.isnan(value):
            drawing = False
            continue
        if not drawing:
            parts.append(f"M{value:.5g} {top:.5g}")
        elif value != last:
            parts.append(f"H{value:.5g}")
        parts.append(f"V{bottom:.5g}")
        drawing, last = True, value
    return "".join(parts)


def _frame(picture: Picture, title: str, lines: list[str], width: int, height: int, kind: str) -> Iterator[str]:
    yield f'<text class="am-text" y="-12">{escape(title)}</text>'
    yield f'<text class="am-small" y="{height + 16}">key 0</text>'
    yield f'<text class="am-small" x="{width}" y="{height + 16}" text-anchor="end">{picture.kv_len - 1:,}</text>'
    yield '<text class="am-small" x="-6" y="11" text-anchor="end">query 0</text>'
    yield f'<text class="am-small" x="-6" y="{height}" text-anchor="end">{picture.q_len - 1:,}</text>'
    x = 0
    legend = (("am-part", "partial"), ("am-whole", "whole")) if kind == "mask" else (("am-score-low", "lower"), ("am-score-high", "higher"))
    for style, name in legend:
        yield f'<rect class="{style}" x="{x}" y="{height + 26}" width="10" height="10"/>'
        yield f'<text class="am-small" x="{x + 14}" y="{height + 35}">{name}</text>'
        x += 66
    if kind == "mask":
        yield f'<text class="am-small" x="{x}" y="{height + 35}">lines: bounds of loops (dashed: whole)</text>'
    for number, line in enumerate(lines):
        yield f'<text class="am-small" y="{height + 52 + 14 * number}">{escape(line)}</text>'
