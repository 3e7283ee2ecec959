"""Host time of warm calls on the CPU, beside another checkout in turn: python benchmarks/host_calls.py --against /path/to/checkout.

--against PATH    another checkout, whose processes alternate with this one's    --rounds 5    processes of each
--only NAME       some cases, by a part of their names                           --json FILE   microseconds a call
--launches        calls of a GPU that is not there (host_launches.py)

Inputs are one row and one key, so that what is left is Python and the launch. CPU time of the calling thread; each process gives the least
of its batches, a round the quotient of two neighbouring processes; told are the medians of the least times and of the quotients.
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_BATCH, _BATCHES = 200, 40


def calls() -> dict[str, Callable[[], Any]]:
    """The warm calls that are measured; only what a checkout of November 2026 has."""
    import torch
    import torch.nn.attention.flex_attention

    import attn_mlir
    import attn_mlir.flex

    torch.manual_seed(0)
    torch.set_num_threads(1)
    q, k, v = torch.randn(3, 1, 1, 1, 16).unbind(0)
    wq, wk, wv = (x.clone().requires_grad_() for x in (q, k, v))
    slopes, decay = torch.rand(1), -torch.rand(1, 1, 1)
    causal = attn_mlir.masks.causal()

    def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - slopes[h] * (q_idx - kv_idx)

    q8, k8, v8 = (x.to(torch.float8_e4m3fn) for x in (q, k, v))
    scales: dict[str, Any] = {name: torch.ones(1, 1) for name in ("q_descale", "k_descale", "v_descale")}
    module = attn_mlir.Attention(mask_mod=causal)
    meta = attn_mlir.meta_tensor(1, 1, 1, 16, dtype=torch.float32)
    engine = attn_mlir.AttentionEngine((meta, meta, meta), mask_mod=causal)
    flex = torch.nn.attention.flex_attention
    block_masks = [make(causal, None, None, 1, 1, device="cpu") for make in (attn_mlir.flex.create_block_mask, flex.create_block_mask)]
    linear = attn_mlir.LinearAttention()
    linear_engine = attn_mlir.LinearAttentionEngine((meta, meta, meta))

    def no_gradient(call: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.no_grad():
                return call()

        return run

    return {
        "attention": lambda: attn_mlir.attention(q, k, v, mask_mod=causal),
        "attention, captured tensor": lambda: attn_mlir.attention(q, k, v, score_mod=alibi, mask_mod=causal),
        "attention, 8 bits": lambda: attn_mlir.attention(q8, k8, v8, mask_mod=causal),
        "attention, 8 bits, scales": lambda: attn_mlir.attention(q8, k8, v8, mask_mod=causal, **scales),
        "attention, requires_grad": lambda: attn_mlir.attention(wq, wk, wv, mask_mod=causal),
        "attention, requires_grad, no_grad": no_gradient(lambda: attn_mlir.attention(wq, wk, wv, mask_mod=causal)),
        "flex_attention, our BlockMask": lambda: attn_mlir.flex_attention(q, k, v, block_mask=block_masks[0]),
        "flex_attention, torch's BlockMask": lambda: attn_mlir.flex_attention(q, k, v, block_mask=block_masks[1]),
        "Attention": lambda: module(q, k, v),
        "AttentionEngine": lambda: engine(q, k, v),
        "linear_attention": lambda: attn_mlir.linear_attention(q, k, v, decay),
        "LinearAttention": lambda: linear(q, k, v, decay),
        "LinearAttentionEngine": lambda: linear_engine(q, k, v, decay),
        "scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
    }


def measure(only: str, launches: bool) -> dict[str, float]:
    """Microseconds of CPU time a call, the least of some batches, which take turns."""
    found = importlib.import_module("host_launches").calls() if launches else calls()
    made = {name: call for name, call in found.items() if only in name}
    best = dict.fromkeys(made, float("inf"))
    for call in made.values():
        for _ in range(_BATCH):
            call()
    for _ in range(_BATCHES):
        for name, call in made.items():
            start = time.thread_time()
            for _ in range(_BATCH):
                call()
            best[name] = min(best[name], 1e6 * (time.thread_time() - start) / _BATCH)
    return best


def process(checkout: Path, only: str, launches: bool) -> dict[str, float]:
    """What `measure` gives in a process of its own, with the package of a checkout."""
    path = [str(checkout / "python"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", "--only", only, *["--launches"] * launches]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


def main() -> None:
    """Measures and tells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--launches", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options.only, options.launches)))
        return
    own, others = [], []
    for number in range(options.rounds):
        if options.against is not None and number % 2:
            others.append(process(options.against, options.only, options.launches))
        own.append(process(ROOT, options.only, options.launches))
        if options.against is not None and not number % 2:
            others.append(process(options.against, options.only, options.launches))
    report: dict[str, dict[str, float]] = {}
    for name in own[0]:
        report[name] = {"us": statistics.median(run[name] for run in own)}
        line = f"{name:36}{report[name]['us']:8.1f} us"
        if others:
            report[name] |= {
                "other_us": statistics.median(run[name] for run in others),
                "quotient": statistics.median(one[name] / other[name] for one, other in zip(own, others, strict=True)),
            }
            line += f"{report[name]['other_us']:8.1f} us{report[name]['quotient']:8.3f}"
        print(line)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
