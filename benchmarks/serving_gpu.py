"""Serving on a GPU: packed sequences beside a dense batch of as many pairs, and one query for each cache, in turn with torch's kernels.

    python benchmarks/serving_gpu.py [--dim 64 128] [--rounds 12] [--only varlen decoding latent lists]

Times are medians of CUDA events over rounds in which the systems take turns; throughput counts pairs that the mask keeps, and bytes of the
keys and values that queries see. What torch's packed kernel gives is compared with ours first.
"""

import argparse
import functools
import inspect
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

import attn_mlir
from attn_mlir import masks

Tensor = torch.Tensor
System = Callable[[], Any]
_BF16 = {"device": "cuda", "dtype": torch.bfloat16}
DECODING = [(8, 32, 8, 4096), (8, 32, 8, 32768), (2, 32, 8, 131072), (1, 16, 16, 32768)]
"""Sequences, heads of queries and of keys, keys."""


def offsets(lengths: Sequence[int]) -> Tensor:
    """cu_seqlens."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")


def milliseconds(systems: dict[str, System], rounds: int) -> dict[str, float]:
    """Median times; systems that raise are told, and left out."""
    usable: dict[str, System] = {}
    for name, call in systems.items():
        try:
            for _ in range(2):
                call()
            torch.cuda.synchronize()
            usable[name] = call
        except Exception as error:
            print(f"  {name}: {str(error).splitlines()[0][:160] if str(error) else type(error).__name__}")
    found: dict[str, list[float]] = {name: [] for name in usable}
    for _ in range(rounds):
        for name, call in usable.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            found[name].append(start.elapsed_time(end))
    return {name: statistics.median(times) for name, times in found.items()}


def torch_varlen(q: Tensor, k: Tensor, v: Tensor, cu: Tensor, most: int) -> System:
    """FlashAttention's packed kernel as torch has it."""
    from torch.nn.attention.varlen import varlen_attn

    causal: Any = {"is_causal": True} if "is_causal" in inspect.signature(varlen_attn).parameters else {"window_size": (-1, 0)}
    return lambda: varlen_attn(q, k, v, cu, cu, most, most, **causal)


def flex(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int]) -> System:
    """Compiled FlexAttention with a mask by sequence over all positions; its block mask is made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    owner = torch.repeat_interleave(torch.arange(len(lengths), device="cuda"), torch.tensor(lengths, device="cuda"))
    total = len(owner)
    made = create_block_mask(lambda b, h, i, j: (owner[i] == owner[j]) & (i >= j), None, None, total, total, device="cuda", _compile=True)
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return lambda: compiled(q, k, v, block_mask=made, enable_gqa=q.shape[1] != k.shape[1])


def varlen(dim: int, rounds: int, others: bool) -> None:
    """64 sequences of 128 to 8192 positions, causal, 16 heads, beside a dense batch."""
    heads, generator = 16, torch.Generator().manual_seed(0)
    lengths = torch.randint(128, 8193, (64,), generator=generator).tolist()
    pairs = sum(n * (n + 1) // 2 for n in lengths)
    q, k, v = (torch.randn(sum(lengths), heads, dim, **_BF16, requires_grad=True) for _ in range(3))
    cu, most = offsets(lengths), max(lengths)
    square = 4096
    dense = [torch.randn(16, square, heads, dim, **_BF16, requires_grad=True) for _ in range(3)]
    dense_pairs = 16 * square * (square + 1) // 2
    causal = masks.causal()

    def packed() -> Tensor:
        return attn_mlir.attention_varlen(q, k, v, cu, mask_mod=causal, max_q=most, max_k=most)

    def whole() -> Tensor:
        return attn_mlir.attention(dense[0], dense[1], dense[2], mask_mod=causal, layout="bshd")

    forward: dict[str, System] = {"packed": packed, "dense": whole}
    tensors = {"packed": (q, k, v), "dense": dense}
    for name, make in (("torch varlen", lambda: torch_varlen(q, k, v, cu, most)), ("FlexAttention", lambda: flex(q, k, v, lengths))):
        if not others:
            break
        try:
            forward[name], tensors[name] = make(), (q, k, v)
        except Exception as error:
            print(f"  {name}: {str(error).splitlines()[0][:160]}")
    print(f"varlen, D {dim}: {len(lengths)} sequences, {sum(lengths)} positions, {heads} heads, causal, bf16")
    counts = {name: dense_pairs if name == "dense" else pairs for name in forward}
    with torch.no_grad():
        times = milliseconds(forward, rounds)
        ours = packed()
        for name in set(times) & {"torch varlen"}:
            error = (forward[name]().float() - ours.float()).norm() / ours.float().norm()
            print(f"  {name} differs by {error:.1e}")
    _tell("forward", times, counts, 4 * heads * dim)
    grads: dict[str, System] = {}
    for name, call in forward.items():
        if name in times:
            grads[name] = _backward(call(), tensors[name])
    ordered = attn_mlir.attention_varlen(q, k, v, cu, mask_mod=causal, max_q=most, max_k=most, deterministic=True)
    grads["packed, deterministic"], counts["packed, deterministic"] = _backward(ordered, (q, k, v)), pairs
    _tell("backward", milliseconds(grads, rounds), counts, 10 * heads * dim)


def _backward(o: Tensor, tensors: Sequence[Tensor]) -> System:
    do = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, tensors, do, retain_graph=True)


def _tell(what: str, times: dict[str, float], pairs: dict[str, int], flops: int) -> None:
    speeds = {name: pairs[name] * flops / time * 1e-9 for name, time in times.items()}
    base = speeds.get("dense", float("nan"))
    print(f"  {what}: " + "; ".join(f"{n} {times[n]:.2f} ms, {s:.0f} TFLOP/s ({s / base:.2f} of dense)" for n, s in speeds.items()))


def decoding(rounds: int, others: bool) -> None:
    """One query for each of several caches of equal length, in CUDA graphs, so that kernels are timed: packed, in pages, and torch's."""
    for batch, heads, kv_heads, keys in DECODING:
        q = torch.randn(batch, heads, 128, **_BF16)
        k, v = (torch.randn(batch * keys, kv_heads, 128, **_BF16) for _ in range(2))
        cu_q, cu_k = offsets([1] * batch), offsets([keys] * batch)
        used = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        systems: dict[str, System] = {
            "packed": lambda x=(q, k, v, cu_q, cu_k), n=keys: attn_mlir.attention_varlen(*x, max_q=1, max_k=n),
        }
        systems["parts of one size"] = lambda x=(q, k, v, cu_q, cu_k), n=keys: attn_mlir.attention_varlen(
            *x, max_q=1, max_k=n, batch_invariant=True
        )
        for size in (16, 64, 256):
            table = torch.randperm(batch * keys // size, device="cuda", dtype=torch.int32).view(batch, -1)
            paged = [x.view(-1, size, kv_heads, 128) for x in (k, v)]
            options = {"seqused_k": used, "block_table": table, "max_q": 1, "max_k": keys}
            systems[f"pages of {size}"] = lambda x=(q, *paged, cu_q), o=options: attn_mlir.attention_varlen(x[0], x[1], x[2], x[3], **o)
        if others:
            of_batch = [x.view(batch, -1, x.shape[1], 128).transpose(1, 2) for x in (q, k, v)]
            systems["torch"] = lambda x=of_batch: torch.nn.functional.scaled_dot_product_attention(x[0], x[1], x[2], enable_gqa=True)
        with torch.no_grad():
            times = milliseconds({name: replayed(name, call) for name, call in systems.items()}, rounds)
        size = 2 * k.nbytes
        told = "; ".join(f"{name} {1000 * ms:.0f} us, {size / ms * 1e-6:.0f} GB/s" for name, ms in times.items())
        print(f"decoding, B{batch} H{heads}:{kv_heads} D128, {keys} keys: {told}", flush=True)


def latent(rounds: int) -> None:
    """MLA's decoding: 128 heads of one of keys with 576 columns, the first 512 of which are the values."""
    for batch, keys in ((4, 32768), (32, 8192)):
        q, cache = torch.randn(batch, 128, 576, **_BF16), torch.randn(batch * keys, 1, 576, **_BF16)
        cu_q, cu_k = offsets([1] * batch), offsets([keys] * batch)
        call = functools.partial(attn_mlir.attention_varlen, q, cache, cache[..., :512], cu_q, cu_k, max_q=1, max_k=keys)
        with torch.no_grad():
            (ms,) = milliseconds({"latent": replayed("latent", call)}, rounds).values()
        flops = 2 * batch * 128 * keys * (576 + 512)
        print(
            f"MLA, B{batch} H128:1 D576/512, {keys} keys: {1000 * ms:.0f} us, {flops / ms * 1e-9:.0f} TFLOP/s, "
            f"{cache.nbytes / ms * 1e-6:.0f} GB/s of the cache",
            flush=True,
        )


def lists(rounds: int) -> None:
    """Listed blocks of 64 keys, each 64 of 512: NSA's lists of single queries and lists of blocks of 64 queries, beside all keys."""
    for queries, block in ((1024, 1), (4096, 64)):
        q = torch.randn(1, 16, queries, 128, **_BF16)
        k, v = (torch.randn(1, 1, 32768, 128, **_BF16) for _ in range(2))
        index = torch.stack([torch.randperm(512, device="cuda")[:64] for _ in range(queries // block)]).int()[None, None]
        listed = {"key_index": index, "key_block": (block, 64)}
        table = torch.zeros(queries // block, 512, dtype=torch.bool, device="cuda").scatter_(1, index[0, 0].long(), True)

        def mask(b: Any, h: Any, i: Any, j: Any, table: Tensor = table, block: int = block) -> Any:
            return table[i // block, j // 64]

        systems = {
            "lists": functools.partial(attn_mlir.attention, q, k, v, **listed),
            "a table as a mask": functools.partial(attn_mlir.attention, q, k, v, mask_mod=mask),
            "all keys": functools.partial(attn_mlir.attention, q, k, v),
        }
        with torch.no_grad():
            times = milliseconds({name: replayed(name, call) for name, call in systems.items()}, rounds)
        told = "; ".join(f"{name} {1000 * ms:.0f} us" for name, ms in times.items())
        print(f"lists, {queries} queries in blocks of {block}, H16:1 D128, 64 of 512 blocks of 64 keys: {told}", flush=True)


def single_keys(rounds: int) -> None:
    """DSA: 256 queries, each with 2048 keys of 65536, of MLA's widths (values are columns of the keys) and others, beside all keys."""
    for heads, columns, values in ((16, 128, 128), (128, 576, 512)):
        queries, keys, listed = 256, 65536, 2048
        q, k = torch.randn(1, heads, queries, columns, **_BF16), torch.randn(1, 1, keys, columns, **_BF16)
        v = k[..., :values] if values < columns else torch.randn(1, 1, keys, values, **_BF16)
        index = torch.stack([torch.randperm(keys, device="cuda")[:listed] for _ in range(queries)]).int()[None, None]
        call = functools.partial(attn_mlir.attention, q, k, v)
        systems = {"lists": functools.partial(call, key_index=index, key_block=(1, 1)), "all keys": call}
        with torch.no_grad():
            times = milliseconds({name: replayed(name, each) for name, each in systems.items()}, rounds)
        told = "; ".join(f"{name} {1000 * ms:.0f} us" for name, ms in times.items())
        size = queries * listed * 2 * (columns if values < columns else columns + values)
        speeds = (
            f"{size / times['lists'] * 1e-6:.0f} GB/s, {2e-9 * queries * heads * listed * (columns + values) / times['lists']:.0f} TFLOP/s"
        )
        print(f"single keys, {queries} queries, H{heads}:1 D{columns}/{values}, {listed} of {keys} keys: {told}; {speeds}", flush=True)


def replayed(name: str, call: System) -> System:
    """A CUDA graph of one call; what cannot be captured is called as it is."""
    try:
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay
    except Exception as error:
        print(f"  {name}: {str(error).splitlines()[0][:160]}", flush=True)
        return call


def main() -> None:
    """Measures what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dim", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", nargs="+", default=["varlen", "decoding", "latent", "lists"])
    parser.add_argument("--alone", action="store_true", help="without torch's kernels")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    for dim in options.dim if "varlen" in options.only else ():
        varlen(dim, options.rounds, not options.alone)
    if "decoding" in options.only:
        decoding(options.rounds, not options.alone)
    if "latent" in options.only:
        latent(options.rounds)
    if "lists" in options.only:
        lists(options.rounds)
        single_keys(options.rounds)


if __name__ == "__main__":
    main()
