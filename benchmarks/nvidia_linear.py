"""Linear attention on an NVIDIA GPU, side by side with what else is installed: python benchmarks/nvidia_linear.py.

Mamba-2, simple GLA, retention, RetNet's shape, and GLA in bfloat16, forward and backward. Systems: attn_mlir, mamba_ssm or fla where they
can be imported, and the chunked formula in eager PyTorch. Results and gradients of the first batch are compared with that formula in
float64 before anything is timed; then the systems take turns (see nvidia_attention.py). Where the other implementation is not
installed, the table has its time as recorded on an H200 (h200_linear_reference.json), and says so.

    --cases mamba2,simple_gla,retention,retnet,gla    --lengths 2048,4096,8192    --parts forward,backward
    --systems attn_mlir,peer,eager    --quick    small shapes    --device cpu    tests the script itself    --json FILE
    --dtype float32    q, k, v in f32: the floor counts six products of bf16 for each of f32; nothing is recorded of other implementations
    --few    few heads and long sequences, which attn_mlir scans whole (0) and in segments of --segments 0,512,1024,2048,4096 positions
"""

import argparse
import functools
import gc
import importlib
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from nvidia_attention import in_turn

_ROOT = Path(__file__).resolve().parent
_REFERENCE = json.loads((_ROOT / "h200_linear_reference.json").read_text())
_BANDWIDTH, _FLOPS = 4.8e12, 989e12
"""What an H200 moves and multiplies at most in a second."""
_TOLERANCE = {"attn_mlir": 4e-3, "peer": 3e-2, "eager": 3e-2}
"""rms(error) / rms(reference) of results in 16 bits; eager PyTorch rounds between its steps."""
_SINGLE = {"attn_mlir": 1.5e-6, "peer": 3e-2, "eager": 1e-4}
"""The same in f32."""
Tensors = dict[str, torch.Tensor]
System = Callable[[Tensors], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Inputs are [B, T, H, D], as the other implementations take them; q and k have `key_heads` heads."""

    name: str
    batch: int
    length: int
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype = torch.bfloat16

    def inputs(self, device: str) -> Tensors:
        """Random inputs that need gradients, without those that have none (retention's decays are constants)."""
        torch.manual_seed(0)
        shape = (self.batch, self.length)

        def normal(heads: int, dim: int) -> torch.Tensor:
            return torch.randn(*shape, heads, dim, device=device).to(self.dtype)

        made = {name: normal(self.key_heads, self.key_dim) for name in "qk"} | {"v": normal(self.heads, self.value_dim)}
        if self.name == "mamba2":
            made |= {"dt": 0.1 * torch.rand(*shape, self.heads, device=device), "A": -torch.rand(self.heads, device=device) - 0.1}
        if self.name == "simple_gla":
            made["g"] = -0.1 * torch.rand(*shape, self.heads, device=device)
        if self.name == "gla":
            made["g"] = -0.1 * torch.rand(*shape, self.heads, self.key_dim, device=device)
        return {name: x.requires_grad_() for name, x in made.items()}

    def work(self, backward: bool) -> tuple[float, float]:
        """Bytes that must be moved and FLOPs of chunks of 64, at least."""
        rows, size = self.batch * self.length, self.dtype.itemsize
        keys, values = rows * self.key_heads * self.key_dim * size, rows * self.heads * self.value_dim * size
        decays = {"mamba2": 4, "simple_gla": 4, "gla": 4 * self.key_dim}.get(self.name, 0) * rows * self.heads
        products = 6 if self.dtype == torch.float32 else 1
        scan = 2 * products * rows * self.heads * (64 * (self.key_dim + self.value_dim) + 2 * self.key_dim * self.value_dim)
        return (4 * keys + 3 * values + 2 * decays, 3 * scan) if backward else (2 * keys + 2 * values + decays, scan)

    def floor_ms(self, backward: bool) -> float:
        """No implementation can be faster on an H200."""
        moved, flops = self.work(backward)
        return 1e3 * max(moved / _BANDWIDTH, flops / _FLOPS)


def eager(case: Case, x: Tensors, chunk: int = 64) -> torch.Tensor:
    """The chunked formula, in the dtype of the inputs with sums of f32 (or f64)."""
    q, k, v = (x[name].transpose(1, 2) for name in "qkv")
    q, k = (t.repeat_interleave(case.heads // case.key_heads, 1) for t in (q, k))
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    decay, scale = _decay(case, x, wide), 1.0
    if case.name == "mamba2":
        v = (v * x["dt"].transpose(1, 2).unsqueeze(3)).to(v.dtype)
    else:
        scale = case.key_dim**-0.5
    chunk = min(chunk, 16) if decay.dim() == 4 else chunk  # every pair has weights of its own for all channels
    b, h, length, _ = v.shape
    q, k, v, sums = (t.reshape(b, h, length // chunk, chunk, -1) for t in (q * scale, k, v, decay))
    sums = sums.cumsum(3)
    present = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).tril()
    weights = (sums.unsqueeze(4) - sums.unsqueeze(3)).masked_fill(~present.unsqueeze(2), -torch.inf).exp()
    pairs = (q @ k.mT) * weights.squeeze(5) if decay.dim() == 3 else (q.unsqueeze(4) * k.unsqueeze(3) * weights).sum(5)
    o = pairs.to(v.dtype) @ v
    last = sums[:, :, :, -1:]
    added = ((k * (last - sums).exp()).to(v.dtype).mT @ v).to(wide)
    carry, state, states = last.exp().mT, torch.zeros_like(added[:, :, 0]), []
    for n in range(length // chunk):
        states.append(state)
        state = carry[:, :, n] * state + added[:, :, n]
    before = torch.stack(states, 2).to(q.dtype)
    o = o + ((q @ before) * sums.exp() if decay.dim() == 3 else (q * sums.exp()).to(q.dtype) @ before)
    return o.reshape(b, h, length, -1).transpose(1, 2).to(x["v"].dtype)


def _decay(case: Case, x: Tensors, wide: torch.dtype) -> torch.Tensor:
    """Log decays [B, H, T], or [B, H, T, K]."""
    match case.name:
        case "mamba2":
            return (x["dt"] * x["A"]).to(wide).transpose(1, 2)
        case "simple_gla" | "gla":
            return x["g"].to(wide).transpose(1, 2)
    heads = torch.arange(case.heads, dtype=wide, device=x["v"].device)
    return torch.log(1 - torch.exp2(-5 - heads)).reshape(1, -1, 1).expand(x["v"].shape[0], -1, case.length)


def ours(case: Case, x: Tensors, segment: int | None = None) -> torch.Tensor:
    """`segment`: of how many positions are segments; 0: none, None: as attn_mlir chooses."""
    from attn_mlir.api.recurrences import gla, mamba2, retention_linear, simple_gla

    match case.name:
        case "mamba2":
            return mamba2(x["v"], x["dt"], x["A"], x["k"], x["q"], segment_size=segment)
        case "simple_gla":
            return simple_gla(x["q"], x["k"], x["v"], x["g"], segment_size=segment)[0]
        case "gla":
            return gla(x["q"], x["k"], x["v"], x["g"], segment_size=segment)[0]
    return retention_linear(x["q"], x["k"], x["v"], segment_size=segment)[0]


def peer(case: Case) -> System | str:
    """The other implementation, or why there is none."""
    module, name = {
        "mamba2": ("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined"),
        "simple_gla": ("fla.ops.simple_gla", "chunk_simple_gla"),
        "gla": ("fla.ops.gla", "chunk_gla"),
    }.get(case.name, ("fla.ops.retention", "chunk_retention"))
    try:
        function: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return f"{module} is not installed"
    if case.name == "mamba2":
        return lambda x: function(x["v"], x["dt"], x["A"], x["k"], x["q"], chunk_size=256)
    if case.name in ("simple_gla", "gla"):
        return lambda x: function(x["q"], x["k"], x["v"], x["g"])[0]
    return lambda x: function(x["q"], x["k"], x["v"])[0]


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """rms(found - wanted) / rms(wanted); infinite for results that are not finite."""
    value = ((found.double() - wanted).norm() / wanted.norm()).item()
    return value if value == value else float("inf")


def exact(case: Case, x: Tensors, do: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
    """o and the gradients of the first batch in float64. A has none that is of one batch alone."""
    first = {name: (t if t.dim() == 1 else t[:1]).detach().double().requires_grad_() for name, t in x.items()}
    o = eager(case, first)
    wanted = {name: t for name, t in first.items() if t.dim() > 1}
    return o.detach(), dict(zip(wanted, torch.autograd.grad(o, list(wanted.values()), do[:1].double()), strict=True))


def run_case(case: Case, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Checks and times one case."""
    x = case.inputs(args.device)
    do = torch.randn(case.batch, case.length, case.heads, case.value_dim, device=args.device).to(case.dtype)
    wanted, gradients = exact(case, x, do)
    formula = "takes the memory of T x 16 x K weights for each head" if case.name == "gla" else lambda x: eager(case, x)
    given: dict[str, System | str] = {"attn_mlir": lambda x: ours(case, x), "peer": peer(case), "eager": formula}
    given |= {size: functools.partial(_in_segments, case, int(size)) for size in args.segments}
    tolerance = _SINGLE if case.dtype == torch.float32 else _TOLERANCE
    rows = []
    for part in args.parts:
        found: dict[str, dict[str, Any]] = {}
        calls: dict[str, Callable[[], Any]] = {}
        for name in (*args.systems, *args.segments):
            system = given[name]
            if isinstance(system, str):
                found[name] = {"reason": system}
                continue
            found[name], call = _prepare(part, system, x, do, (wanted, gradients, tolerance.get(name, tolerance["attn_mlir"])))
            if call is not None:
                calls[name] = call
        for name, samples in in_turn(calls, args.rounds, args.launches, args.device).items():
            found[name] |= {"ms": statistics.median(samples), "samples_ms": samples}
        shape = {name: getattr(case, name) for name in ("batch", "length", "heads", "key_heads", "key_dim", "value_dim")}
        shape["dtype"] = str(case.dtype).removeprefix("torch.")
        rows.append({"case": case.name, "direction": part, **shape, "floor_ms": case.floor_ms(part == "backward"), "systems": found})
        del calls
    return rows


def _in_segments(case: Case, segment: int, x: Tensors) -> torch.Tensor:
    return ours(case, x, segment)


def _prepare(
    part: str, system: System, x: Tensors, do: torch.Tensor, reference: tuple[torch.Tensor, Tensors, float]
) -> tuple[dict[str, Any], Callable[[], Any] | None]:
    """The errors of a system; what is timed, or a "reason" where it fails or is wrong."""
    leaves, (wanted, gradients, tolerance) = list(x.values()), reference
    try:
        o = system(x)
        errors = {"o": error(o[:1], wanted)}
        if part == "backward":
            made = dict(zip(x, torch.autograd.grad(o, leaves, do, retain_graph=True), strict=True))
            errors |= {f"d{name}": error(made[name][:1], value) for name, value in gradients.items()}
    except Exception as failure:
        return {"reason": f"fails: {type(failure).__name__}: {str(failure).strip().splitlines()[:1]}"}, None
    wrong = {name: value for name, value in errors.items() if not value < tolerance}
    if wrong:
        return {"errors": errors, "reason": f"wrong: {wrong}"}, None
    if part == "backward":
        return {"errors": errors}, lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)
    fixed = {name: t.detach() for name, t in x.items()}
    return {"errors": errors}, lambda: system(fixed)


def few_heads(names: Sequence[str], lengths: Sequence[int], quick: bool) -> list[Case]:
    """Shapes that leave most of a device idle."""
    sizes = (1, 64) if quick else (8, 128), (4, 128)
    return [
        Case(name, 1, length, heads, heads, dim, dim) for name in names for heads, dim in sizes[: 1 if quick else 2] for length in lengths
    ]


def few_table(rows: Sequence[dict[str, Any]], segments: Sequence[str]) -> str:
    """Times of whole sequences and of segments, and programs of a scan, in markdown."""
    heads = ("case", "heads", "T", "direction", "floor ms", "chosen ms", *[f"{size} ms (programs)" for size in segments], "0 / chosen")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        systems, length = row["systems"], row["length"]

        def told(name: str, systems: dict[str, Any] = systems) -> str:
            found = systems.get(name, {})
            return f"{found['ms']:.3f}" if "ms" in found else found.get("reason", "")

        blocks = row["batch"] * row["heads"] * max(1, row["value_dim"] // 128)
        programs = {size: blocks * (-(-length // int(size)) if int(size) else 1) for size in segments}
        times = [systems.get(name, {}).get("ms") for name in ("0", "attn_mlir")]
        cells = [row["case"], row["heads"], length, row["direction"], f"{row['floor_ms']:.3f}", told("attn_mlir")]
        cells += [f"{told(size)} ({programs[size]})" for size in segments]
        lines.append("| " + " | ".join(map(str, [*cells, f"{times[0] / times[1]:.2f}" if all(times) else ""])) + " |")
    return "\n".join(lines)


def cases(names: Sequence[str], lengths: Sequence[int], quick: bool) -> list[Case]:
    """The shapes of h200_linear_reference.json, and RetNet's."""
    sizes = {"mamba2": (8, 80, 1, 128, 64), "simple_gla": (8, 32, 32, 128, 128), "retention": (8, 32, 32, 128, 128)}
    sizes |= {"retnet": (8, 8, 8, 256, 512), "gla": (8, 32, 32, 128, 128)}
    if quick:
        return [Case(name, 1, 128, 4, 4 if name != "mamba2" else 1, 64, 64) for name in names]
    found = []
    for name in names:
        batch, heads, key_heads, key_dim, value_dim = sizes[name]
        found += [Case(name, batch, length, heads, key_heads, key_dim, value_dim) for length in lengths]
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The report in markdown."""
    heads = ("case", "T", "direction", "attn_mlir ms", "floor ms", "eager ms", "other ms", "times faster", "bar")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        systems, number = row["systems"], int(row["direction"] == "backward")
        mine, other = systems.get("attn_mlir", {}), systems.get("peer", {})
        recorded = _REFERENCE["milliseconds"].get(row["case"], {})
        time, note = other.get("ms"), ""
        if time is None and str(row["length"]) in recorded and row["batch"] == 8 and row["dtype"] == "bfloat16":
            time, note = recorded[str(row["length"])][number], f" ({recorded['peer']}, recorded)"
        ratio = f"{time / mine['ms']:.2f}" if time and "ms" in mine else ""
        bar = _REFERENCE["bars"].get(row["case"], ("", ""))[number]
        told = [f"{s['ms']:.3f}" if "ms" in s else s.get("reason", "") for s in (mine, systems.get("eager", {}))]
        cells = [row["case"], row["length"], row["direction"], told[0], f"{row['floor_ms']:.3f}", told[1]]
        lines.append("| " + " | ".join(map(str, [*cells, f"{time:.3f}{note}" if time else other.get("reason", ""), ratio, bar])) + " |")
    return "\n".join(lines)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases")
    parser.add_argument("--lengths")
    parser.add_argument("--parts", default="forward,backward")
    parser.add_argument("--systems")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--segments")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--launches", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(given)
    usual = ("mamba2,simple_gla,retention,retnet,gla", "2048,4096,8192", "attn_mlir,peer,eager", "")
    few = ("simple_gla,retention", "16384,65536", "attn_mlir", "0,512,1024,2048,4096")
    for name, value in zip(("cases", "lengths", "systems", "segments"), few if args.few else usual, strict=True):
        setattr(args, name, value if getattr(args, name) is None else getattr(args, name))
    for name in ("cases", "parts", "systems", "lengths", "segments"):
        setattr(args, name, [each for each in getattr(args, name).split(",") if each])
    args.lengths = [int(length) for length in args.lengths]
    return args


def main(given: Sequence[str] | None = None) -> int:
    args = arguments(given)
    if args.device != "cpu" and not torch.cuda.is_available():
        print("no NVIDIA GPU: torch.cuda.is_available() is false", file=sys.stderr)
        return 1
    rows: list[dict[str, Any]] = []
    for case in (few_heads if args.few else cases)(args.cases, args.lengths, args.quick):
        rows += run_case(replace(case, dtype=getattr(torch, args.dtype)), args)
        gc.collect()
        if args.device != "cpu":
            torch.cuda.empty_cache()
    print(few_table(rows, args.segments) if args.few else table(rows))
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "recorded": _REFERENCE["source"]}, indent=1))
    wrong = [row for row in rows if "reason" in row["systems"].get("attn_mlir", {})]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
