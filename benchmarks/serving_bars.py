"""Every bar of serving on a Hopper GPU in one table: packed sequences, decoding, pages, MLA, rows, lists of keys.

    python benchmarks/serving_bars.py [--only decoding latent single sparse few rows lists varlen many] [--rounds 9] [--json FILE]

Bars are those that were set for an H200; where memory binds they are scaled by the data sheets' bandwidths (4.8 TB/s there). "x" is how
many times a bar is reached, 1 and more: met. Times are medians of CUDA events, in CUDA graphs where that can be, systems of a line in turn.
"""

import argparse
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from serving_gpu import DECODING, offsets, replayed
from serving_gpu import milliseconds as in_turn

from attn_mlir import attention, attention_varlen, masks, rows

Tensor = torch.Tensor
_BF16: Any = {"device": "cuda", "dtype": torch.bfloat16}
H200 = 4.8
"""TB/s."""
FASTEST = 9
"""Rounds."""
_LINES = list[tuple[str, str, str, float]]()


def bandwidth() -> float:
    """TB/s of the data sheet."""
    name = torch.cuda.get_device_name()
    return H200 if "H200" in name else 3.35 if "HBM3" in name else 2.0


def tell(what: str, found: str, bar: str, times: float) -> None:
    """A line of the table."""
    _LINES.append((what, found, bar, times))
    print(f"  {what}: {found} (bar {bar}) x {times:.2f}", flush=True)


def in_graphs(systems: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median milliseconds of calls in CUDA graphs."""
    with torch.no_grad():
        return in_turn({name: replayed(name, call) for name, call in systems.items()}, rounds)


def varlen(rounds: int) -> None:
    """64 sequences of 128 to 8192 positions, causal, 16 heads, beside a dense batch: at least 0.9 of its TFLOP/s."""
    lengths = torch.randint(128, 8193, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    ratio = sum(n * (n + 1) // 2 for n in lengths) / (16 * 4096 * 4097 // 2)
    causal = masks.causal()
    for dim in (128, 64):
        packed: Any = [torch.randn(sum(lengths), 16, dim, **_BF16, requires_grad=True) for _ in range(3)]
        dense: Any = [torch.randn(16, 4096, 16, dim, **_BF16, requires_grad=True) for _ in range(3)]
        cu, most = offsets(lengths), max(lengths)
        calls = {
            "packed": lambda x=packed, cu=cu, n=most: attention_varlen(x[0], x[1], x[2], cu, mask_mod=causal, max_q=n, max_k=n),
            "dense": lambda x=dense: attention(*x, mask_mod=causal, layout="bshd"),
        }
        with torch.no_grad():
            times = in_turn(calls, rounds)
        _varlen(f"varlen forward D{dim}", times, ratio)
        backward = dict[str, Callable[[], Any]]()
        for name, inputs in (("packed", packed), ("dense", dense)):
            o = calls[name]()
            backward[name] = functools.partial(torch.autograd.grad, o, inputs, torch.randn_like(o), retain_graph=True)
        _varlen(f"varlen backward D{dim}", in_turn(backward, rounds), ratio)


def _varlen(what: str, times: dict[str, float], ratio: float) -> None:
    share = ratio * times["dense"] / times["packed"]
    tell(what, f"{times['packed']:.2f} ms, {share:.2f} of dense", "0.9 of dense", share / 0.9)


def many(rounds: int) -> None:
    """10,000 short sequences, and one huge among 1000 small ones, beside dense batches of as many pairs."""
    for lengths, dense in (([8] * 10_000, (625, 128)), ([32768, *[64] * 1000], (1, 32768))):
        packed: Any = [torch.randn(sum(lengths), 16, 128, **_BF16) for _ in range(3)]
        whole: Any = [torch.randn(*dense, 16, 128, **_BF16) for _ in range(3)]
        cu, most = offsets(lengths), max(lengths)
        calls = {
            "packed": lambda x=packed, cu=cu, n=most: attention_varlen(x[0], x[1], x[2], cu, mask_mod=masks.causal(), max_q=n, max_k=n),
            "dense": lambda x=whole: attention(*x, mask_mod=masks.causal(), layout="bshd"),
        }
        times = in_graphs(calls, rounds)
        share = times["dense"] / times["packed"]
        told = f"{1000 * times['packed']:.0f} us; dense {dense[0]} of {dense[1]}, as many rows or more, {1000 * times['dense']:.0f} us"
        tell(f"{len(lengths)} sequences, longest {most}, forward", told, "none", share)


def _caches(batch: int, heads: int, kv_heads: int, keys: int) -> tuple[Any, ...]:
    q = torch.randn(batch, heads, 128, **_BF16)
    k, v = (torch.randn(batch * keys, kv_heads, 128, **_BF16) for _ in range(2))
    return q, k, v, offsets([1] * batch), offsets([keys] * batch)


def decoding(rounds: int) -> None:
    """One query for each of several caches: GB/s of keys and values; pages at least 0.95 of that."""
    bars = 2800, 3400, 3400, 3000
    for (batch, heads, kv_heads, keys), bar in zip(DECODING, bars, strict=True):
        q, k, v, cu_q, cu_k = _caches(batch, heads, kv_heads, keys)
        systems: dict[str, Callable[[], Any]] = {"packed": functools.partial(attention_varlen, q, k, v, cu_q, cu_k, max_q=1, max_k=keys)}
        used = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        for size in (16, 64, 256):
            table = torch.randperm(batch * keys // size, device="cuda", dtype=torch.int32).view(batch, -1)
            cut = [x.view(-1, size, kv_heads, 128) for x in (k, v)]
            systems[f"{size}"] = functools.partial(attention_varlen, q, *cut, cu_q, seqused_k=used, block_table=table, max_q=1, max_k=keys)
        times = in_graphs(systems, rounds)
        speed, scaled = 2 * k.nbytes / times["packed"] * 1e-6, bar * bandwidth() / H200
        name = f"B{batch} H{heads}:{kv_heads} {keys}"
        tell(f"decoding {name}", f"{1000 * times['packed']:.0f} us, {speed:.0f} GB/s", f"{bar}, here {scaled:.0f}", speed / scaled)
        shares = {size: times["packed"] / times[size] for size in times if size != "packed"}
        if shares:
            told = ", ".join(f"{size}: {share:.3f}" for size, share in shares.items())
            tell(f"pages {name}", f"of packed, pages of {told}", "0.95, each", min(shares.values()) / 0.95)


def latent(rounds: int) -> None:
    """MLA's decoding: 400 TFLOP/s, or 2600 GB/s."""
    for batch, keys in ((4, 32768), (32, 8192)):
        q, cache = torch.randn(batch, 128, 576, **_BF16), torch.randn(batch * keys, 1, 576, **_BF16)
        call = functools.partial(
            attention_varlen, q, cache, cache[..., :512], offsets([1] * batch), offsets([keys] * batch), max_q=1, max_k=keys
        )
        (ms,) = in_graphs({"latent": call}, rounds).values()
        speed = 2e-9 * batch * 128 * keys * (576 + 512) / ms
        told = f"{1000 * ms:.0f} us, {speed:.0f} TFLOP/s, {cache.nbytes / ms * 1e-6:.0f} GB/s"
        tell(f"MLA B{batch} H128:1 {keys}", told, "400 TFLOP/s" if batch == 4 else "none", speed / 400)


def of_rows(rounds: int) -> None:
    """Sigmoid and relu rows at softmax's speed, decoding and packed sequences forward."""
    kinds = {"softmax": rows.softmax, "sigmoid": rows.sigmoid, "relu": rows.relu}
    inputs = _caches(8, 32, 8, 32768)
    decoded = {name: functools.partial(attention_varlen, *inputs, max_q=1, max_k=32768, row=row) for name, row in kinds.items()}
    lengths = torch.randint(128, 8193, (16,), generator=torch.Generator().manual_seed(1)).tolist()
    packed: Any = [torch.randn(sum(lengths), 16, 128, **_BF16) for _ in range(3)]
    causal = masks.causal()
    whole = {
        name: functools.partial(attention_varlen, *packed, offsets(lengths), mask_mod=causal, max_q=8192, max_k=8192, row=row)
        for name, row in kinds.items()
    }
    for what, systems in (("decoding", decoded), ("packed forward", whole)):
        times = in_graphs(systems, rounds)
        for name in ("sigmoid", "relu"):
            told = f"{times[name]:.3f} ms, softmax {times['softmax']:.3f}"
            tell(f"{name}, {what}", told, "softmax's speed", times["softmax"] / times[name])


def lists(rounds: int) -> None:
    """64 of 512 blocks of 64 keys, beside a dense mask that reads a table: at least 5 times as fast."""
    for queries, block in ((1024, 1), (4096, 64)):
        q = torch.randn(1, 16, queries, 128, **_BF16)
        k, v = (torch.randn(1, 1, 32768, 128, **_BF16) for _ in range(2))
        index = torch.stack([torch.randperm(512, device="cuda")[:64] for _ in range(queries // block)]).int()[None, None]
        table = torch.zeros(queries // block, 512, dtype=torch.bool, device="cuda").scatter_(1, index[0, 0].long(), True)

        def mask(b: Any, h: Any, i: Any, j: Any, table: Tensor = table, block: int = block) -> Any:
            return table[i // block, j // 64]

        systems: dict[str, Callable[[], Any]] = {
            "list": functools.partial(attention, q, k, v, key_index=index, key_block=(block, 64)),
            "mask": functools.partial(attention, q, k, v, mask_mod=mask),
        }
        times = in_graphs(systems, rounds)
        _lists(f"NSA forward, {queries} queries in blocks of {block}", times)
        leaves = [x.requires_grad_() for x in (q, k, v)]

        def both(call: Callable[[], Tensor], leaves: list[Tensor] = leaves) -> Any:
            o = call()
            return torch.autograd.grad(o, leaves, o)

        calls = {name: functools.partial(both, call) for name, call in systems.items()}
        _lists(f"NSA forward + backward, {queries} in blocks of {block}, calls", in_turn(calls, rounds))
        graphs = {name: replayed(name, call) for name, call in calls.items()}
        _lists(f"NSA forward + backward, {queries} in blocks of {block}, in graphs", in_turn(graphs, rounds))


def _lists(what: str, times: dict[str, float]) -> None:
    speed = times["mask"] / times["list"]
    tell(what, f"{times['list']:.3f} ms, dense mask {times['mask']:.3f}, {speed:.1f} times as fast", "5 times", speed / 5)


SINGLE = [
    (1, 1, 16, 1, 1, 128, 128),
    (8, 1, 16, 1, 1, 128, 128),
    (1, 1, 128, 1, 1, 576, 512),
    (8, 1, 128, 1, 1, 576, 512),
    (1, 256, 16, 1, 1, 128, 128),
    (1, 256, 8, 1, 1, 128, 128),
    (1, 256, 32, 4, 4, 128, 128),
    (1, 256, 32, 4, 1, 128, 128),
    (32, 1, 16, 1, 1, 128, 128),
    (32, 1, 32, 4, 1, 128, 128),
    (1, 256, 16, 1, 1, 576, 512),
    (1, 256, 64, 1, 1, 576, 512),
    (1, 256, 128, 1, 1, 576, 512),
    (32, 1, 128, 1, 1, 576, 512),
]
"""Entries of the batch, queries, heads of queries, keys and lists, columns, columns of the values (fewer: the first ones of keys)."""


def single(rounds: int) -> None:
    """DSA: each query lists 2048 of 65536 keys: at most 1.5 times what reading them takes."""
    for batch, queries, heads, kv_heads, own, columns, values in SINGLE:
        q = torch.randn(batch, heads, queries, columns, **_BF16)
        k = torch.randn(batch, kv_heads, 65536, columns, **_BF16)
        v = k[..., :values] if values < columns else torch.randn(batch, kv_heads, 65536, values, **_BF16)
        index = torch.rand(batch, own, queries, 65536, device="cuda").topk(2048, -1).indices.int()
        call = functools.partial(attention, q, k, v, key_index=index, key_block=(1, 1))
        (ms,) = in_graphs({"list": call}, rounds).values()
        size = 2 * batch * queries * 2048 * kv_heads * (columns if values < columns else columns + values)
        floor, flops = size / bandwidth() * 1e-9, 2e-9 * batch * queries * heads * 2048 * (columns + values)
        told = f"{1000 * ms:.0f} us, {size / ms * 1e-6:.0f} GB/s, {flops / ms:.0f} TFLOP/s; bytes take {1000 * floor:.0f} us"
        name = f"DSA B{batch} {queries} queries, H{heads}:{kv_heads}, lists of {own}, D{columns}/{values}"
        tell(name, told, f"{1500 * floor:.0f} us", 1.5 * floor / ms)


def sparse_cache(rounds: int) -> None:
    """DSA as vLLM serves it: MLA's cache in pages of 64, lists of positions of each request, through attention_varlen."""
    for batch, queries in ((32, 1), (8, 32)):
        rows, keys = batch * queries, 65536
        q = torch.randn(rows, 128, 576, **_BF16)
        cache = torch.randn(batch * keys // 64, 64, 1, 576, **_BF16)
        table = torch.randperm(len(cache), device="cuda", dtype=torch.int32).view(batch, -1)
        index = torch.rand(rows, 1, keys, device="cuda").topk(2048, -1).indices.int()
        used = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        call = functools.partial(
            attention_varlen, q, cache, cache[..., :512], offsets([queries] * batch), key_index=index, key_block=(1, 1)
        )
        call = functools.partial(call, seqused_k=used, block_table=table, max_q=queries, max_k=keys)
        (ms,) = in_graphs({"list": call}, rounds).values()
        floor, flops = rows * 2048 * 1152 / bandwidth() * 1e-9, 2e-9 * rows * 128 * 2048 * 1088
        told = f"{1000 * ms:.0f} us, {flops / ms:.0f} TFLOP/s; bytes take {1000 * floor:.0f} us"
        tell(f"DSA in pages, {batch} requests of {queries} queries, H128:1", told, f"{1500 * floor:.0f} us", 1.5 * floor / ms)


def few(rounds: int) -> None:
    """Several queries of each request, as speculative decoding has: as fast as so many single queries, or as their bytes."""
    for batch, queries, heads, kv_heads, columns, values, keys in (
        (4, 2, 128, 1, 576, 512, 32768),
        (4, 4, 128, 1, 576, 512, 32768),
        (8, 4, 32, 8, 128, 128, 32768),
        (8, 16, 32, 8, 128, 128, 32768),
    ):
        q, k = torch.randn(batch * queries, heads, columns, **_BF16), torch.randn(batch * keys, kv_heads, columns, **_BF16)
        v = k[..., :values] if values < columns else torch.randn_like(k)
        cu_q, cu_k, causal = offsets([queries] * batch), offsets([keys] * batch), masks.causal("bottom_right")
        several = functools.partial(attention_varlen, q, k, v, cu_q, cu_k, max_q=queries, max_k=keys, mask_mod=causal)
        one = functools.partial(attention_varlen, q[:batch], k, v, offsets([1] * batch), cu_k, max_q=1, max_k=keys, mask_mod=causal)
        times = in_graphs({"several": several, "one": one}, rounds)
        told = f"{1000 * times['several']:.0f} us; 1 query {1000 * times['one']:.0f}"
        share = queries * times["one"] / times["several"]
        tell(f"{queries} queries, B{batch} H{heads}:{kv_heads} D{columns}, {keys} keys", told, f"{queries} times 1 query", share)


PARTS: dict[str, Callable[[int], None]] = {
    "decoding": decoding,
    "latent": latent,
    "single": single,
    "sparse": sparse_cache,
    "few": few,
    "rows": of_rows,
    "lists": lists,
    "varlen": varlen,
    "many": many,
}


def main() -> None:
    """Measures what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=FASTEST)
    parser.add_argument("--json")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    for name in options.only:
        try:
            PARTS[name](options.rounds)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            _LINES.append((name, type(error).__name__, "-", float("nan")))
        torch.cuda.empty_cache()
    print("| | found | bar | x |\n|---|---|---|--:|")
    for what, found, bar, times in _LINES:
        print(f"| {what} | {found} | {bar} | {times:.2f} |")
    if options.json:
        Path(options.json).write_text(json.dumps(_LINES))


if __name__ == "__main__":
    main()
