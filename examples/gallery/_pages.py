"""The pages of the gallery in docs/, made of the files and of measured.json."""

import json
from pathlib import Path
from typing import Any

from _common import HERE, Variant, load

DOCS = HERE.parents[1] / "docs"
FIGURES = DOCS / "figures" / "gallery"
MEASURED = HERE / "measured.json"

CHAPTERS = {
    "masks": ("Masks", ["streaming_llm", "prefix_lm", "documents", "draft_tree", "block_diffusion", "neighborhood"]),
    "scores": ("Scores", ["alibi", "t5_bias", "gemma2", "ssmax", "forgetting"]),
    "elements": ("Queries, keys and values", ["cosine", "qk_norm", "rope", "laser", "mla"]),
    "rows": ("Rows", ["gpt_oss", "softpick", "sigmoid", "relu_power", "sparsemax", "top_k", "differential"]),
    "blocks": ("Chosen blocks and several calls", ["moba", "nsa", "cascade"]),
    "linear": ("Without softmax", ["retention", "gla", "mamba2"]),
}
NAMES = [name for _, names in CHAPTERS.values() for name in names]

ABSENT = """\
| not there | arXiv | why |
|---|---|---|
| stick-breaking | 2410.17980 | the weight of a key needs a running product over the keys after it; a row has reductions, no scans |
| CoPE, contextual position | 2405.18719 | a running sum of gates along the keys |
| selective attention | 2410.02703 | a running sum along the queries |
| PaTH | 2505.16381 | products of matrices along the keys |
| talking heads | 2003.02436 | a score mixes those of other heads |
| multi-token attention | 2504.00927 | a score is a convolution of those of other queries, keys and heads |
| DeltaNet | 2406.06484 | the state is corrected by what it holds: chunks need a triangular solve |
| Gated DeltaNet, Kimi Linear | 2412.06464, 2510.26692 | the same |
| TTT, Titans | 2407.04620, 2501.00663 | the inner loss is not linear |
"""


def pages() -> dict[Path, str]:
    """The text of every page by its path."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    variants = {name: load(name) for name in NAMES}
    made = {DOCS / "gallery.md": _index(variants, measured)}
    for chapter, (title, names) in CHAPTERS.items():
        parts = [_part(variants[name], measured["variants"][name]) for name in names]
        made[DOCS / "gallery" / f"{chapter}.md"] = f"# Gallery: {title.lower()}\n\nPart of [the gallery](../gallery.md).\n\n" + "\n".join(
            parts
        )
    return made


def _index(variants: dict[str, Variant], measured: dict[str, Any]) -> str:
    rows = []
    for chapter, (title, names) in CHAPTERS.items():
        rows.append(f"| **{title}** | | | | |")
        for name in names:
            found, (head, _, rest) = measured["variants"][name], variants[name].title.partition(":")
            link = f"[{head}](gallery/{chapter}.md#{name})"
            arxiv = f"[{variants[name].paper}](https://arxiv.org/abs/{variants[name].paper})"
            flex = f"{found['flex']:.2f}" if "flex" in found else ""
            rows.append(f"| {link}:{rest} | {arxiv} | {_error(found)} | {found['eager']:.2f} | {flex} |")
    return f"""# Gallery of published attentions

{len(variants)} variants, each one short file in [examples/gallery](../examples/gallery): what a researcher writes, the paper's
formula in plain PyTorch to compare with, and a picture. All train: every float that a function captures has a gradient.

    python examples/gallery/run.py streaming_llm softpick --check   # forward and backward against the formula, float32 and float64
    python examples/gallery/run.py --time                           # forward, in turn with the formula and FlexAttention
    make gallery                                                    # all of it, and these pages

These pages are made from the files. Errors are ||a - b|| / ||b|| in float32, of o and of the worst gradient, against the
formula in float64. Times are of forward calls, ours divided by theirs: less than 1 is faster. "formula" is the reference, eager
on whole matrices of scores (GLA, Mamba-2: the recurrence step by step); "Flex" is torch's compiled FlexAttention for
variants that are a score and a mask function: its block masks are made before the timing, its results compared with ours.

{measured["about"]}

| variant | arXiv | errors | formula | Flex |
|---|---|--:|--:|--:|
{chr(10).join(rows)}

## What cannot be expressed

{ABSENT}
[not-there.md](not-there.md) has more, and what to do instead.
"""


def _error(found: dict[str, Any]) -> str:
    return f"{found['o']:.0e}, {found['gradient']:.0e}"


def _part(variant: Variant, found: dict[str, Any]) -> str:
    title, *about = variant.text
    text = "\n\n".join(about)
    flex = f", {found['flex']:.2f} of compiled FlexAttention's" if "flex" in found else ""
    return f"""## {variant.name}

**{title}** {text}

```python
{variant.code}
```

![{variant.name}](../figures/gallery/{variant.name}.svg)

Errors in float32: o {found["o"]:.0e}, worst gradient {found["gradient"]:.0e}. Time: {found["eager"]:.2f} of the eager formula's{flex}.
[The file](../../examples/gallery/{variant.name}.py).
"""
