"""The timeline that docs/seeing.md shows, drawn by the code: `python test/unit/timeline_figure.py` writes it again."""

import sys
from pathlib import Path
from typing import Any

import torch

import attn_mlir
from attn_mlir import masks
from attn_mlir.backends import backend_for
from attn_mlir.backends.seen import Seen
from attn_mlir.mlir import LOCK
from attn_mlir.seeing.subjects import of_attention
from attn_mlir.seeing.timeline import draw

FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "timeline.svg"
DEVICE = "cuda-emulated"
_WIDTH = 1400


def softmax(s: Any) -> Any:
    e = (s - s.max()).exp()
    return e / e.sum()


def attention() -> attn_mlir.Attention:
    return attn_mlir.Attention(row=softmax, mask_mod=masks.causal())


def seen() -> Seen:
    """What a report shows of causal softmax in f16, head dimension 64."""
    form: dict[str, Any] = {"device": DEVICE, "dtype": torch.float16, "head_dim": 64, "q_len": 512, "kv_len": None}
    subject, backend = of_attention(attention(), backward=False, **form), backend_for(DEVICE)
    see = backend.seer(DEVICE) if backend is not None else None
    assert see is not None
    with LOCK:
        return see(subject.traced.located, "", (), False)


def figure(found: Seen) -> str:
    """The SVG text of the page's figure."""
    (timeline,) = found.timelines
    return draw(timeline, _WIDTH)


if __name__ == "__main__":
    FIGURE.write_text(figure(seen()))
    sys.exit(0)
