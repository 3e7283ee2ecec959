"""The blocks of a mask that a picture shows, as numbers and as text: skipped, partial and whole ones, and the loops over keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attn_mlir.errors import UnsupportedError
from attn_mlir.passes.intervals.survey import Survey

_WIDTH, _HEIGHT = 64, 32
_SHADES = "░▒▓"
_ROWS = 8


@dataclass(frozen=True, eq=False)
class Scores:
    """What a score function makes of one score, sampled over the positions of a head."""

    values: Any
    """float64 [rows, columns], at the middle of as many equal parts of the queries and of the keys."""
    score: float

    @property
    def finite(self) -> Any:
        """The finite ones."""
        return self.values[np.isfinite(self.values)]

    @property
    def removed(self) -> float:
        """The share of the samples that became -inf."""
        return float(np.isneginf(self.values).mean())


@dataclass(frozen=True, eq=False)
class Panel:
    """One batch entry and head of a picture."""

    b: int
    h: int
    survey: Survey
    scores: Scores | None = None


@dataclass(frozen=True, eq=False)
class Picture:
    """A mask by blocks of `block` queries and keys: *skipped* where no position is kept, *whole* where all are, else *partial*."""

    name: str
    q_len: int
    kv_len: int
    block: tuple[int, int]
    panels: tuple[Panel, ...]

    @property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """The (b, h) that are shown, in order."""
        return tuple((panel.b, panel.h) for panel in self.panels)

    @property
    def bounds(self) -> torch.Tensor:
        """int64 [heads shown, rows of blocks, 4]: over which keys a kernel loops, begin, full_begin, full_end and end.

        Outside of [begin, end) no key is kept for any query of the row of blocks; in [full_begin, full_end) every key is, for all.
        """
        return torch.from_numpy(np.stack([panel.survey.bounds for panel in self.panels]))

    @property
    def counts(self) -> dict[str, int]:
        """How many blocks of the heads shown are "skipped", "partial" and "whole"."""
        every = np.sum([panel.survey.counts for panel in self.panels], axis=0)
        return dict(zip(("skipped", "partial", "whole"), map(int, every), strict=True))

    @property
    def sparsity(self) -> float:
        """The percentage of blocks that are skipped."""
        counts = self.counts
        return 100.0 * counts["skipped"] / sum(counts.values())

    @property
    def is_exact(self) -> bool:
        """Whether every block was looked at, alone or as a part of a larger one that is decided; otherwise some that are counted as partial
        may be skipped or whole."""
        return not any(panel.survey.undecided for panel in self.panels)

    @property
    def classes(self) -> torch.Tensor:
        """int8 [heads shown, rows of blocks, columns of blocks]: 0 skipped, 1 partial, 2 whole.

        Raises UnsupportedError where there are more than 2^18 blocks: `counts` and `bounds` are there for all lengths.
        """
        grids = [panel.survey.grid for panel in self.panels]
        if any(grid is None for grid in grids):
            rows, columns = self.panels[0].survey.shape
            raise UnsupportedError(
                f"{rows} x {columns} blocks are too many for a table: use `counts` and `bounds`, larger blocks, or shorter lengths"
            )
        return torch.from_numpy(np.stack([grid for grid in grids if grid is not None]))

    def __str__(self) -> str:
        return "\n".join([self._head(), *[line for panel in self.panels for line in self._panel(panel)]])

    __repr__ = __str__

    def _head(self) -> str:
        return f"{self.name}: {self.q_len:,} queries x {self.kv_len:,} keys in blocks of {self.block[0]} x {self.block[1]}"

    def summary(self, panel: Panel) -> str:
        """One line: how many blocks of a head are what."""
        counts = panel.survey.counts
        named = zip(("skipped", "partial", "whole"), counts, strict=True)
        told = ", ".join(f"{name} {count:,} ({100 * count / sum(counts):.1f} %)" for name, count in named)
        left = f"; {panel.survey.undecided:,} of the partial ones were not looked at" if panel.survey.undecided else ""
        return told + left

    def _panel(self, panel: Panel) -> Iterator[str]:
        survey = panel.survey
        yield f"b = {panel.b}, h = {panel.h}: {self.summary(panel)}"
        wide = 2 if survey.partial.shape[1] <= _WIDTH // 2 else 1
        step = tuple(-(-size // most) for size, most in zip(survey.partial.shape, (_HEIGHT, _WIDTH), strict=True))
        each = " x ".join(f"{n * c}" for n, c in zip(step, survey.cell, strict=True))
        yield from (f"  |{''.join(c * wide for c in line)}|" for line in shades(survey, step))
        meaning = (
            "' ' skipped, '█' whole, '░▒▓' partial" if each == "1 x 1" else f"a character is {each} blocks: the darker, the more is kept"
        )
        yield f"  {meaning}"
        if panel.scores is not None:
            yield f"  {told(panel.scores)}"
        yield "  loops over keys, by queries: [begin, end), whole in [full_begin, full_end)"
        yield from (f"    {line}" for line in self.loops(panel))

    def loops(self, panel: Panel, most: int = _ROWS) -> list[str]:
        """The bounds of the first and last rows of blocks, one a line."""
        bounds = panel.survey.bounds
        count = len(bounds)
        shown = [*range(count)] if count <= most else [*range(most // 2), *range(count - most // 2, count)]
        lines = [self.loop(panel, number) for number in shown]
        return lines if count <= most else [*lines[: most // 2], f"... {count - most:,} more", *lines[most // 2 :]]

    def loop(self, panel: Panel, number: int) -> str:
        """The bounds of one row of blocks in words."""
        begin, full_begin, full_end, end = map(int, panel.survey.bounds[number])
        first, last = number * self.block[0], min((number + 1) * self.block[0], self.q_len)
        whole = f", whole in [{full_begin}, {full_end})" if full_begin < full_end else ""
        return f"queries {first} to {last - 1}: " + (f"keys [{begin}, {end}){whole}" if begin < end else "no keys")


def told(scores: Scores) -> str:
    """What a score function does, in a line."""
    finite = scores.finite
    line = (
        f"score_mod makes {scores.score:g} into {finite.min():.4g} to {finite.max():.4g}"
        if finite.size
        else "score_mod leaves no finite score"
    )
    if not scores.removed:
        return line
    return f"{line}; -inf at {100 * scores.removed:.1f} % of the samples, which kernels compute all the same: a mask_mod skips them"


def levels(survey: Survey) -> Any:
    """int [rows of cells, columns of cells]: 0 all skipped, 5 all whole, 1 to 4 the more blocks are not skipped."""
    sizes = _sizes(survey)
    kept = survey.partial + survey.full
    shade = np.clip(np.ceil(4 * kept / sizes).astype(int), 1, 4)
    return np.where(kept == 0, 0, np.where(survey.full == sizes, 5, shade))


def _sizes(survey: Survey) -> Any:
    """How many blocks each cell has; those at the ends have fewer."""
    sides = [np.minimum(cell, count - np.arange(0, count, cell)) for cell, count in zip(survey.cell, survey.shape, strict=True)]
    return sides[0][:, None] * sides[1]


def shades(survey: Survey, step: tuple[int, ...]) -> list[str]:
    """Lines of characters, one for `step` cells."""

    def merged(x: Any) -> Any:
        rows = np.add.reduceat(x, np.arange(0, x.shape[0], step[0]), axis=0)
        return np.add.reduceat(rows, np.arange(0, x.shape[1], step[1]), axis=1)

    partial, full, sizes = (merged(x) for x in (survey.partial, survey.full, _sizes(survey)))
    kept = np.clip(np.ceil(3 * (partial / 2 + full) / sizes).astype(int), 1, 3) - 1
    return [
        "".join(" " if not p + f else "█" if f == s else _SHADES[k] for p, f, s, k in zip(*row, strict=True))
        for row in zip(partial, full, sizes, kept, strict=True)
    ]
