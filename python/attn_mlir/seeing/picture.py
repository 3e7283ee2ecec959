"""The picture of a mask as notebooks and files have it, and the names of what it shows."""

import importlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.seeing.panels import Picture, levels
from attn_mlir.seeing.svg import draw

_LONGEST = 80
"""Characters of a function's name that are shown."""


@dataclass(frozen=True, eq=False)
class MaskPicture(Picture):
    """What `attn_mlir.visualize` returns.

    `str()` draws it for a terminal, notebooks show it as SVG, `save` writes it. A block of `block` queries and keys is *skipped* where no
    position is kept, *whole* where all are, so that a kernel asks no mask, and *partial* otherwise.
    """

    __repr__ = Picture.__str__

    def svg(self) -> str:
        """The picture as SVG text: one panel a head, with the bounds of each row of blocks as its tooltip."""
        return draw(self)

    def _repr_svg_(self) -> str:
        return self.svg()

    def save(self, path: str | Path) -> None:
        """Writes the picture, as `.svg` or `.png` by the name.

        Raises ArgumentError for other names, and UnsupportedError for PNG where matplotlib, which draws it, is not installed.
        """
        path = Path(path)
        match path.suffix.lower():
            case ".svg":
                path.write_text(self.svg(), encoding="utf-8")
            case ".png":
                path.write_bytes(self._png())
            case other:
                raise ArgumentError(f"a picture is saved as .svg or .png, got {other or 'a name without either'}: {path.name!r}")

    def _png(self) -> bytes:
        try:
            figures, colors = (importlib.import_module(f"matplotlib.{name}") for name in ("figure", "colors"))
        except ImportError as error:
            raise UnsupportedError("PNG needs matplotlib: pip install matplotlib, or save the picture as .svg") from error
        figure = figures.Figure(figsize=(5.2 * len(self.panels), 5.6), layout="constrained")
        map_ = colors.ListedColormap(["#f1f3f5", "#f1d4a8", "#f1c07a", "#f0a63d", "#f08c00", "#1c7ed6"])
        axes = figure.subplots(1, len(self.panels), squeeze=False)[0]
        for axis, panel in zip(axes, self.panels, strict=True):
            extent = (0, self.kv_len, self.q_len, 0)
            axis.imshow(levels(panel.survey), cmap=map_, vmin=0, vmax=5, aspect="auto", extent=extent, interpolation="nearest")
            axis.set(title=f"b = {panel.b}, h = {panel.h}\n{self.summary(panel)}", xlabel="keys", ylabel="queries")
            axis.title.set_fontsize(8)
        figure.suptitle(self._head(), fontsize=10)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def names(functions: Mapping[str, Any]) -> str:
    """How a picture calls what it is of: the names of its functions, with what makers such as `masks.causal` were called with."""
    return " and ".join(name_of(function) for function in functions.values() if function is not None) or "no mask"


def name_of(function: Any) -> str:
    """The name of a function, a string as it is; written so that files and fonts take it: no control characters, and no end of them."""
    name = "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in _name_of(function)])
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."


def _name_of(function: Any) -> str:
    if isinstance(function, str):
        return function
    made = getattr(function, "_attn_mlir_made", None)
    if made is None:
        return getattr(function, "__name__", type(function).__name__)
    make, given, named = made
    arguments = [*map(_argument, given), *[f"{name}={_argument(value)}" for name, value in named.items()]]
    return f"{make.__name__}({', '.join(arguments)})"


def _argument(value: Any) -> str:
    if callable(value):
        return _name_of(value)
    return repr(value) if isinstance(value, (str, int, float, bool, type(None))) else "..."
