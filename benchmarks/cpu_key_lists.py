"""Key lists beside the same attention as a dense mask and beside all keys: CPU time of calls, in turn."""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import attn_mlir


@dataclass(frozen=True)
class Case:
    """Sizes of q, k and v, the block of a list, and its entries."""

    name: str
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    dim: int
    block: tuple[int, int]
    entries: int


CASES = [
    Case("blocks of 64 queries, 64 of 512 blocks", 4, 4, 512, 32768, 64, (64, 64), 64),
    Case("NSA: each query, 64 of 512 blocks", 16, 1, 256, 32768, 64, (1, 64), 64),
    Case("DSA: each query, 2048 of 65536 keys", 16, 1, 64, 65536, 64, (1, 1), 2048),
    Case("DSA, decoding: one query", 16, 1, 1, 65536, 64, (1, 1), 2048),
]


def variants(case: Case, grad: bool) -> dict[str, Callable[[], Any]]:
    """The calls to time, by name."""
    torch.manual_seed(0)
    shapes = ((case.heads, case.q_len), (case.kv_heads, case.kv_len), (case.kv_heads, case.kv_len))
    qkv: Any = [torch.randn(1, heads, length, case.dim, requires_grad=grad) for heads, length in shapes]
    queries, keys = case.block
    lists, blocks = -(-case.q_len // queries), case.kv_len // keys
    drawn = [torch.randperm(blocks)[: case.entries] for _ in range(case.kv_heads * lists)]
    index = torch.stack(drawn).view(1, case.kv_heads, lists, case.entries).int()
    table = torch.zeros(1, case.kv_heads, lists, blocks, dtype=torch.bool).scatter_(3, index.long(), True)
    dense = table.repeat_interleave(queries, 2)[:, :, : case.q_len].repeat_interleave(keys, 3).contiguous()
    group = case.heads // case.kv_heads

    def mask(b: int, h: int, q_idx: int, kv_idx: int) -> Any:
        return dense[b, h // group, q_idx, kv_idx]

    def call(**options: Any) -> None:
        o = attn_mlir.attention(*qkv, **options)
        if grad:
            torch.autograd.grad(o, qkv, torch.ones_like(o))

    return {
        "lists": lambda: call(key_index=index, key_block=case.block),
        "dense mask": lambda: call(mask_mod=mask),
        "all keys": lambda: call(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for case in [case for case in CASES if options.only in case.name]:
        for grad in (False, True):
            calls = variants(case, grad)
            best = dict.fromkeys(calls, float("inf"))
            for turn in range(options.turns + 1):
                for name, call in calls.items():
                    begin = time.process_time()
                    call()
                    if turn:  # the first one compiles
                        best[name] = min(best[name], time.process_time() - begin)
            times = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in best.items())
            print(f"{case.name}, {'forward + backward' if grad else 'forward'}: {times}", flush=True)


if __name__ == "__main__":
    main()
