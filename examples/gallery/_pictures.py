"""Pictures of variants as SVG: the blocks of a mask, the weight of a key against its score, or the weights of one head."""

import torch
from _common import Row, Sizes, Variant

import attn_mlir

_STYLE = (
    "<style>.p{fill:#fff}.f{fill:#f1f3f5;stroke:#868e96}.t{fill:#212529}.a{fill:#1c7ed6}.b{fill:#f08c00}.l{fill:none;stroke:#1c7ed6;"
    "stroke-width:2}.s{fill:none;stroke:#868e96;stroke-dasharray:4 3}@media (prefers-color-scheme:dark){.p{fill:#16191d}.f{fill:#23272c}"
    ".t{fill:#e9ecef}}</style>"
)
_SIDE, _CELLS, _LEVELS = 240, 40, 6


def picture(variant: Variant) -> str:
    """SVG text; the same in every run."""
    torch.manual_seed(1)
    if variant.mask is not None:
        drawn = variant.inputs(Sizes(1, 4, 2, 256, 16))
        mask = variant.mask(**drawn)
        if mask.__name__ in ("<lambda>", "mask") and not hasattr(mask, "_attn_mlir_made"):
            mask.__name__ = variant.name  # what the picture is called
        keys = drawn["k"].shape[2] if "k" in drawn else drawn["latent"].shape[1]
        return attn_mlir.visualize(mask, q_len=drawn["q"].shape[2], kv_len=keys, num_heads=4, block_size=(8, 8)).svg()
    return _curve(variant.row) if variant.row is not None else _weights(variant)


def _curve(row: Row) -> str:
    """The weight of one key, whose score runs from -4 to 4, beside seven others; dashed: softmax."""
    others = torch.linspace(-1.5, 1.5, 7, dtype=torch.float64)
    at = torch.linspace(-4, 4, 161, dtype=torch.float64)

    def line(function: Row, kind: str, top: float) -> str:
        points = [(float(x), float(function(torch.cat([others, x[None]]))[-1]) / top) for x in at]
        text = " ".join(f"{_SIDE * (x + 4) / 8:.1f},{_SIDE * (1 - y):.1f}" for x, y in points)
        return f'<polyline class="{kind}" points="{text}"/>'

    top = max(1.0, *[float(row(torch.cat([others, x[None]]))[-1]) for x in at])
    lines = line(lambda s: torch.softmax(s, -1), "s", top) + line(row, "l", top)
    return _framed(lines, f"weight, 0 to {top:.3g}, of a key by its score, -4 to 4 (dashed: softmax)")


def _weights(variant: Variant) -> str:
    """|weights| of head 0, relative to the largest: the output where v is the identity."""
    drawn = variant.inputs(Sizes(1, 4, 2, _CELLS, 16))
    name = "x" if "x" in drawn else "v"
    shared = drawn[name].shape[1]
    drawn[name] = torch.eye(drawn[name].shape[2]).expand(1, shared, -1, -1).contiguous()
    if "prefix_v" in drawn:
        drawn["prefix_v"] = torch.zeros(1, shared, drawn["prefix_v"].shape[2], _CELLS)
    weights = variant.run(**drawn)[0, 0]
    weights = weights.abs() / weights.abs().max().clamp(min=1e-30)
    level = (weights.sqrt() * _LEVELS).round().int()
    rows, columns = level.shape
    paths = []
    for value in range(1, _LEVELS + 1):
        cells = "".join(f"M{j} {i}h1v1h-1z" for i, j in (level == value).nonzero().tolist())
        paths.append(f'<path class="a" opacity="{value / _LEVELS:.2f}" d="{cells}"/>' if cells else "")
    scale = f'<g transform="scale({_SIDE / columns:g} {_SIDE / rows:g})">{"".join(paths)}</g>'
    return _framed(scale, f"weights of head 0: {rows} queries (down), {columns} keys (across)")


def _framed(inner: str, title: str) -> str:
    width, height = _SIDE + 200, _SIDE + 50
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui,sans-serif" font-size="12" role="img"><title>{title}</title>{_STYLE}'
        f'<rect class="p" width="{width}" height="{height}"/><text class="t" x="10" y="20">{title}</text>'
        f'<g transform="translate(100 36)"><rect class="f" width="{_SIDE}" height="{_SIDE}"/>{inner}</g></svg>\n'
    )
