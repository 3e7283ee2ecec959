"""Ring attention on GPUs of one host: whether it is right, and how near it comes to a multiple of one GPU's rate.

    python benchmarks/ring_gpu.py [--ranks 2] [--length 131072] [--quick] [--profile]

Starts its own processes. Prints, for each case, the relative errors against float64 beside those of one GPU, then times: of one GPU on
length / ranks positions, and of all on `length`; the efficiency is the rate of all over `ranks` times that of one.
"""

import argparse
import functools
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from attn_mlir import attention, attention_varlen, driver, masks, rows
from attn_mlir.api.options import Options
from attn_mlir.distributed import ring_attention, shard, traffic
from attn_mlir.distributed.cut_program import cut_program
from attn_mlir.frontend.emit import Inputs

TABLE: list[str] = []
HEADS, DIM, WINDOW = 16, 128, 4096
ROUNDS = 7


def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--length", type=int, default=131072)
    parser.add_argument("--quick", action="store_true", help="no comparison with float64")
    parser.add_argument("--shapes", action="store_true", help="rates of kernels for whole and for partial results")
    parser.add_argument("--profile", action="store_true", help="the longest kernels of one step")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (options, os.path.join(folder, "store")), nprocs=options.ranks)  # type: ignore[no-untyped-call]


def work(rank: int, options: argparse.Namespace, store: str) -> None:
    """What one process does."""
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=FileStore(store, options.ranks), rank=rank, world_size=options.ranks)
    mesh = init_device_mesh("cuda", (options.ranks,), mesh_dim_names=("cp",))
    if rank == 0:
        print(f"{options.ranks} x {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if not options.quick:
        for name, row in ROWS.items():
            for placement in ("contiguous", "zigzag"):
                check(mesh, name, row, placement)
        for placement in ("contiguous", "zigzag"):
            check_packed(mesh, placement)
    if options.shapes and rank == 0:
        shapes(options.length, rows.softmax)
        shapes(options.length, rows.sigmoid)
    measure(mesh, options)
    for turn in range(options.ranks):
        dist.barrier()
        if rank == turn:
            print("\n".join(TABLE), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def check(mesh: DeviceMesh, name: str, row: Any, placement: str, length: int = 1999) -> None:
    """Errors against dense float64, of the ring and of one GPU."""
    torch.manual_seed(0)
    shapes = [(1, 4, length, DIM), (1, 2, length, DIM), (1, 2, length, DIM)]
    q, k, v = (torch.randn(shape, dtype=torch.float16) for shape in shapes)
    do, slopes = torch.randn(shapes[0], dtype=torch.float16), torch.tensor([0.5, 0.25, 0.125, 0.0625]) / 100

    def run(attend: Callable[..., Tensor], cut: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float16) -> list[Tensor]:
        s = slopes.to("cuda", torch.float64 if dtype == torch.float64 else torch.float32).requires_grad_()
        inputs = [cut(x.to("cuda", dtype)).detach().requires_grad_() for x in (q, k, v)]

        def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + s[h] * (kv_idx - q_idx)

        o = attend(*inputs, row=row, score_mod=alibi, mask_mod=masks.causal())
        o.backward(cut(do.to("cuda", dtype)))
        return [x.detach().double() for x in (o, *(x.grad for x in inputs), s.grad)]  # type: ignore[union-attr]

    def cut(x: Tensor) -> Tensor:
        return shard(x, mesh, placement=placement)

    def ring(*inputs: Tensor, **options: Any) -> Tensor:
        return ring_attention(*inputs, mesh=mesh, placement=placement, strategy="ring", **options)

    wanted = run(functools.partial(dense, DENSE[name]), lambda x: x, torch.float64)
    single, got, again = run(attention, lambda x: x), run(ring, cut), run(ring, cut)
    wanted, single = ([*(cut(x) for x in every[:4]), every[4]] for every in (wanted, single))
    errors = [[float((x - y).norm() / y.norm()) for x, y in zip(every, wanted, strict=True)] for every in (got, single)]
    same = torch.equal(got[0], again[0])
    ok = same and all(mine <= 1.5 * other + 1e-4 for mine, other in zip(*errors, strict=True))
    alone = functools.partial(ring, row=row, score_mod=None, mask_mod=masks.causal())
    with torch.no_grad():  # other kernels, whose running maximum may be any number
        plain = [
            x.double()
            for x in (alone(*(cut(x.cuda()) for x in (q, k, v))), cut(attention(q.cuda(), k.cuda(), v.cuda(), row, None, masks.causal())))
        ]
    ok = ok and float((plain[0] - plain[1]).norm() / plain[1].norm()) < 1e-3
    worst = max(mine / other for mine, other in zip(*errors, strict=True))
    text = f"rank {dist.get_rank()} {'ok  ' if ok else 'FAIL'} {name} {placement}: o {errors[0][0]:.1e}"
    TABLE.append(f"{text}, worst against one GPU {worst:.2f}; same bits {same}")
    assert ok


def check_packed(mesh: DeviceMesh, placement: str, ends: tuple[int, ...] = (300, 301, 1200, 1950), length: int = 1999) -> None:
    """Packed documents that ranks cut, with dropout, beside one GPU: o and gradients; positions behind the last document give 0."""
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(1, heads, length, DIM, device="cuda", dtype=torch.float16) for heads in (4, 2, 2, 4))
    offsets = torch.tensor([0, *ends], dtype=torch.int32, device="cuda")
    options: dict[str, Any] = {"mask_mod": masks.causal(), "dropout_p": 0.2, "dropout_seed": (7, 8)}

    def cut(x: Tensor) -> Tensor:
        return shard(x, mesh, placement=placement)

    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    q_, k_, v_ = (x[0].transpose(0, 1) for x in whole)
    one = attention_varlen(q_, k_, v_, offsets, **options).transpose(0, 1).unsqueeze(0)
    parts = [cut(x).detach().requires_grad_() for x in (q, k, v)]
    ring = ring_attention(*parts, mesh=mesh, placement=placement, cu_seqlens=offsets, **options)
    wanted = [cut(x) for x in (one.detach(), *torch.autograd.grad(one, whole, do))]
    got = [ring.detach(), *torch.autograd.grad(ring, parts, cut(do))]
    worst = max(float((x.double() - y.double()).norm() / y.double().norm()) for x, y in zip(got, wanted, strict=True))
    TABLE.append(f"rank {dist.get_rank()} {'ok  ' if worst < 2e-3 else 'FAIL'} packed documents with dropout, {placement}: {worst:.1e}")
    assert worst < 2e-3


def dense(weights: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor, score_mod: Any, **_: Any) -> Tensor:
    """The whole matrix of scores, causal, with grouped heads."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    positions = torch.arange(q.shape[2], device=q.device)
    heads = torch.arange(q.shape[1], device=q.device).view(1, -1, 1, 1)
    scores = score_mod(q @ k.transpose(2, 3) / math.sqrt(q.shape[3]), 0, heads, positions.view(-1, 1), positions)
    return weights(scores, positions.view(-1, 1) >= positions) @ v


def relu_normalized(s: Any) -> Any:
    w = s.max(0.0)
    return w / (w.sum() + 1e-3)


def dense_relu(s: Tensor, mask: Tensor) -> Tensor:
    w = s.clamp(min=0) * mask
    return w / (w.sum(-1, keepdim=True) + 1e-3)


ROWS: dict[str, Any] = {"softmax": rows.softmax, "sigmoid": rows.sigmoid, "relu_normalized": relu_normalized}
DENSE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": lambda s, mask: s.masked_fill(~mask, -math.inf).softmax(-1),
    "sigmoid": lambda s, mask: s.sigmoid() * mask,
    "relu_normalized": dense_relu,
}


def measure(mesh: DeviceMesh, options: argparse.Namespace) -> None:
    """Times and bytes. Every rank has as many positions of the ring's sequence as one GPU alone has."""
    cases = (
        ("softmax causal", rows.softmax, masks.causal()),
        ("sigmoid causal", rows.sigmoid, masks.causal()),
        ("softmax window", rows.softmax, window),
    )
    for name, row, mask in cases:
        placement = "contiguous" if mask is window else "zigzag"
        part, scale = options.length // options.ranks, options.ranks if mask is window else options.ranks**2
        for backward in (False, True):
            inputs = make(part, backward)
            options_ = {"row": row, "mask_mod": mask}
            ringed = {**options_, "strategy": "ring"}
            alone = functools.partial(step, inputs, functools.partial(attention, **options_))
            ring = functools.partial(step, inputs, functools.partial(ring_attention, mesh=mesh, placement=placement, **ringed))
            before = traffic()["bytes"]
            ring()
            sent = traffic()["bytes"] - before
            one, every = in_turn(alone, ring, options.ranks)
            begin = time.perf_counter()
            ring()
            host = (time.perf_counter() - begin) * 1e3
            efficiency = scale * one / every / options.ranks
            what = f"rank {dist.get_rank()} {name}{' + backward' if backward else ''}"
            times = f"{one:.2f} ms x {scale / options.ranks:g}; {every:.2f} ms"
            TABLE.append(f"{what}: {times}; efficiency {efficiency:.3f}; {sent / 1e6:.1f} MB; host {host:.1f} ms")
            if options.profile and not backward:
                profile(ring)


def make(length: int, backward: bool) -> list[Tensor]:
    return [torch.randn(1, HEADS, length, DIM, device="cuda", dtype=torch.float16, requires_grad=backward) for _ in range(3)]


def step(inputs: list[Tensor], attend: Callable[..., Tensor]) -> None:
    """A forward pass, and a backward pass where inputs need gradients."""
    o = attend(*inputs)
    if o.requires_grad:
        torch.autograd.grad(o, inputs, o.detach())


def in_turn(one: Callable[[], None], every: Callable[[], None], ranks: int) -> tuple[float, float]:
    """Medians of milliseconds of a call, those of the slowest rank: of `one`, made as often as there are ranks, and of `every`, in turn."""
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + 2):
        for samples, function, calls in zip(found, (one, every), (ranks, 1), strict=True):
            torch.cuda.synchronize()
            dist.barrier()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(calls):
                function()
            end.record()
            torch.cuda.synchronize()
            if turn >= 2:
                samples.append(begin.elapsed_time(end) / calls)
    slowest = torch.tensor([statistics.median(samples) for samples in found])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest[0]), float(slowest[1])


def profile(function: Callable[[], None]) -> None:
    """Where the host waits for the device, and the longest kernels of one call, on rank 0; the others make it, too."""
    if dist.get_rank():
        function()
        function()
        torch.cuda.synchronize()
        return
    torch.cuda.set_sync_debug_mode("warn")
    function()
    torch.cuda.set_sync_debug_mode("default")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        function()
        torch.cuda.synchronize()
    events = sorted((e for e in found.events() or [] if e.device_time >= 100), key=lambda e: e.time_range.start)
    begin = events[0].time_range.start
    print("start ms, ms, kernel:")
    for event in events:
        print(f"{(event.time_range.start - begin) / 1e3:8.2f} {event.device_time / 1e3:8.2f} {event.name[:40]}")


def shapes(length: int, row: Any) -> None:
    """Kernels for whole results and for partial ones on the pairs of shards of a zigzag ring of two ranks, on rank 0."""
    inputs = Inputs("f16", DIM, DIM, parts=True)
    entry, *_ = Options((None, None, None, None, masks.causal(), row)).find(inputs, torch.device("cuda"))
    plain, partial = driver.compile(entry.traced.text, "cuda"), cut_program(entry.traced, "cuda", "", False).kernels[0]
    c = length // 4
    cases = [("causal c x c", c, c, 0, 0.5), ("c x c", c, c, c, 1.0), ("c x 2c", c, 2 * c, 2 * c, 2.0)]
    cases.append(("causal 2c x 2c", 2 * c, 2 * c, 0, 2.0))
    make_ = functools.partial(torch.randn, device="cuda", dtype=torch.float16)
    for what, rows_, columns, q_offset, pairs in cases:
        q, k, v = (make_(1, HEADS, n, DIM) for n in (rows_, columns, columns))
        times = []
        for kernel in (plain, partial, plain, partial):
            run = functools.partial(kernel.run, q, k, v, [q_offset, 0, length, length], "bhsd")
            run()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(3):
                run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 3)
        rate = pairs * c * c * 4 * DIM * HEADS / 1e9
        TABLE.append(f"{row.__name__} {what}: whole {', '.join(f'{rate / t:.0f}' for t in times[::2])} partial "
                     f"{', '.join(f'{rate / t:.0f}' for t in times[1::2])} TFLOPS")  # fmt: skip


if __name__ == "__main__":
    main()
