"""A call of a generated library for AMD GPUs, for a process that has a libamdhip64 whose launches are interpreted."""

from pathlib import Path
from typing import Any

import torch

from ahead_calls import STREAM
from ahead_hip_calls import interpreted, memory
from generate_calls import Library

TRAITS = {"dtype": "fp16", "head_dim": 32, "mask": "t:3,0", "lse": 1}


def run(path: Path) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Results of the library beside those of the formula; the last rows have no keys."""
    q, k, v = torch.randn(1, 4, 21, 32).half(), *torch.randn(2, 1, 2, 9, 32).half()
    o, lse = torch.full((1, 4, 21, 32), torch.nan, dtype=torch.float16), torch.full((1, 4, 21), torch.nan)
    library = Library(path, device_type=10, stream=STREAM)
    work = memory(library.sizes(TRAITS, backward=False, q=q, k=k, v=v).forward_workspace)
    given: dict[str, Any] = {"q": q, "k": k, "v": v}
    results: dict[str, Any] = {"o": o, "lse": lse, "workspace": work}

    def call() -> None:
        code, text = library.call("fwd", TRAITS, **given, **results)
        if code:
            raise RuntimeError(f"{code}: {text}")

    calls = interpreted(call, given, results)
    assert {each["stream"] for each in calls if "stream" in each} == {STREAM}
    distance = torch.arange(9)[None] - torch.arange(21)[:, None]
    kept = (distance <= 0) & (distance >= -3)
    some = kept.any(1)[:, None]
    assert not some.all()
    scores = torch.where(kept, q.double() @ k.double().repeat_interleave(2, 1).transpose(2, 3) / 32**0.5, -torch.inf)
    right = torch.where(some, torch.where(some, scores, 0.0).softmax(-1), 0.0) @ v.double().repeat_interleave(2, 1)
    return [(o.double(), right), (lse.double(), torch.where(some[:, 0], torch.where(some, scores, 0.0).logsumexp(-1), -torch.inf))]
