"""Draws points in two logarithmic scales as SVG text, without a library."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_COLORS = ("#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#7f7f7f", "#8c564b")
_SIDE, _LEFT, _TOP, _LINE = 420, 70, 20, 14


def scatter(series: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str) -> str:
    """A picture of points by the names of series; the line is where both are equal. Points that are not positive are left out."""
    kept = {name: [p for p in points if min(p) > 0 and math.isfinite(max(p))] for name, points in series.items()}
    values = [value for points in kept.values() for point in points for value in point] or [1.0]
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
    step = _SIDE / (high - low)

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + (math.log10(x) - low) * step, _TOP + _SIDE - (math.log10(y) - low) * step

    height = _TOP + _SIDE + 50 + _LINE * len(kept)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _SIDE + 20}" height="{height}" font-family="sans-serif" font-size="11">',
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#333"/>',
        f'<line x1="{_LEFT}" y1="{_TOP + _SIDE}" x2="{_LEFT + _SIDE}" y2="{_TOP}" stroke="#bbb"/>',
        f'<text x="{_LEFT + _SIDE / 2}" y="{_TOP + _SIDE + 34}" text-anchor="middle">{escape(x_label)}</text>',
        f'<text transform="translate(16 {_TOP + _SIDE / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>',
    ]
    for tick in _ticks(low, high):
        x, y = place(tick, tick)
        parts.append(f'<text x="{x:.1f}" y="{_TOP + _SIDE + 16}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for number, (name, points) in enumerate(kept.items()):
        color = _COLORS[number % len(_COLORS)]
        for point in points:
            x, y = place(*point)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}" fill-opacity="0.7"/>')
        y = _TOP + _SIDE + 50 + _LINE * number
        parts.append(f'<text x="{_LEFT}" y="{y}" fill="{color}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten, between two logarithms; the ends where none is there."""
    found = [m * 10.0**e for e in range(math.floor(low) - 1, math.ceil(high) + 1) for m in (1, 2, 5)]
    inside = [float(f"{t:g}") for t in found if low <= math.log10(t) <= high]
    return inside or [float(f"{10**low:.3g}"), float(f"{10**high:.3g}")]
