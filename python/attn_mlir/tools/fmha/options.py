"""Options of attn-fmha: those of CK-tile's `example_fmha_fwd` and `example_fmha_bwd`, under the same names."""

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.passes.options import suggest
from attn_mlir.tools.fmha.bias import Bias
from attn_mlir.tools.fmha.coordinates import Coordinates

_FLOAT32 = 3.4e38
PRECISIONS = ("fp16", "bf16", "fp32")
INITS = {"ui": "ui", "0": "ui", "ni": "ni", "uf": "uf", "1": "uf", "nf": "nf", "tf": "tf", "2": "tf"}
_UNBUILT = {
    "fp8": "fp8 scores are not computed yet",
    "bf8": "fp8 scores are not computed yet",
    "fp8bf16": "fp8 scores are not computed yet",
    "fp8fp32": "fp8 scores are not computed yet",
    "mxfp8": "block-scaled types are not computed yet",
    "mxfp4": "block-scaled types are not computed yet",
}
# What CK's examples take besides, with the values that ask for nothing, and why others are refused.
_CACHE = "there is no KV cache yet"
_LENGTHS = "sequences of different lengths in one call are not taken yet"
_QUANTISED = "there is no quantisation yet"
_REFUSED = {
    "s_knew": (("0",), _CACHE),
    "page_block_size": (("0",), _CACHE),
    "cache_batch_idx": (("0",), _CACHE),
    "rotary_dim": (("0",), f"positions are rotated when keys are appended to a cache, and {_CACHE}"),
    "rotary_interleaved": (("0", "1"), ""),
    "s_qpad": (("-1",), _LENGTHS),
    "s_kpad": (("-1",), _LENGTHS),
    "q_eff_lens": (("",), _LENGTHS),
    "kv_eff_lens": (("",), _LENGTHS),
    "qscale": (("n", "0"), _QUANTISED),
    "squant": (("auto", "0"), _QUANTISED),
    "num_splits": (("0", "1"), "how often keys are split is chosen by the kernel"),
    "init_sink": (("0",), "write a learned sink as a row, as in `rows.sink`"),
    "sink_grad": (("0",), "write a learned sink as a row, as in `rows.sink`"),
    "pack_gqa": (("0", "1"), ""),
}


@dataclass(frozen=True)
class FmhaOptions:
    """What the command line asks for; sizes are positive and fit each other."""

    backward: bool
    validate: int
    """0: not, 1: against float64 on the CPU, 2: against float32 on the device."""
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    scale: float
    soft_cap: float
    """0: none."""
    bias: Bias
    bias_gradient: bool
    precision: str
    mask: str
    in_layout: str
    out_layout: str
    column_major: bool
    """Whether v is stored as [.., D, S]."""
    lse: bool
    init: str
    seed: int
    dropout: float
    dropout_seed: tuple[int, int]
    dropout_on_device: bool
    deterministic: bool
    timer: str
    warmup: int
    repeat: int
    names: bool
    json: str
    """Where results are written, or ""."""
    device: str

    @property
    def coordinates(self) -> Coordinates:
        """The mask for these lengths."""
        return Coordinates.decode(self.mask, self.q_len, self.kv_len)


def parse(argv: Sequence[str], backward: bool) -> FmhaOptions:
    """The options; `-b 2` and `-b=2` say the same. Raises ArgumentError or UnsupportedError naming the option that is wrong."""
    made = parser(backward)
    actions = {string.lstrip("-"): action.dest for action in made._actions for string in action.option_strings}
    given = argparse.Namespace(**{action.dest: action.default for action in made._actions})
    words = iter(argv)
    # Not by argparse, to which `-sk` is `-s` of the value k.
    for word in words:
        name, equals, value = word.removeprefix("-").partition("=")
        if not word.startswith("-") or name not in actions:
            raise ArgumentError(f"unknown option '{word}'{suggest(f'-{name}', [f'-{known}' for known in actions])}; attn-fmha -? lists all")
        if not equals:
            value = next(words, None)
            if value is None:
                raise ArgumentError(f"-{name} lacks its value; attn-fmha -? tells what it is")
        setattr(given, actions[name], value)
    return _options(given, backward)


def parser(backward: bool) -> argparse.ArgumentParser:
    """The command line of a pass."""
    made = argparse.ArgumentParser(prog=f"attn-fmha {'bwd' if backward else 'fwd'}", add_help=False, usage="%(prog)s [-name value]...")
    add = lambda name, default, text: made.add_argument(f"-{name}", default=default, metavar="", help=f"{text} (default: {default})")  # noqa: E731
    add("v", "1", "0: no validation, 1: against the formula in float64 on the CPU, 2: in float32 on the device")
    add("mode", "batch", "batch or 0; group or 1 is not there yet")
    add("b", "2", "batch size")
    add("h", "8", "heads of q")
    add("h_k", "-1", "heads of k and v, -1 or 0: as q; fewer: GQA")
    add("s", "3328", "length of q")
    add("s_k", "-1", "length of k and v, -1: as q")
    add("d", "128", "head dimension of q and k")
    add("d_v", "-1", "head dimension of v, -1 or 0: as q")
    made.add_argument("-scale_s", "-scale", default="0", metavar="", help="factor of scores, 0: 1/sqrt(d) (default: 0)")
    add("logits_soft_cap", "0", "c: scores become c tanh(score / c), 0: not")
    add("iperm", "1", "1: q, k, v are b*h*s*d, 0: b*s*h*d")
    add("operm", "1", "the same for o")
    add("bias", "n", "n: none; e, e:1, e:2: a bias 1*1*s*s, 1*h*s*s, b*h*s*s; a, a:1: ALiBi with slopes 1*h, b*h")
    add("prec", "fp16", f"{', '.join(PRECISIONS)}")
    add("mask", "0", "0: none; 1 or t, 2 or b: causal from the top left, bottom right; t:l,r b:l,r xt:w xb:w windows; g:y,x coordinates")
    add("vlayout", "r", "r: v is s*d, c: v is d*s")
    add("lse", "0", "1: also the log-sum-exp of scores, [B, H, Sq]")
    add("init", "uf", "ui: integers, uf: 0 to 1, ni, nf: normal, tf: cosines")
    add("seed", "11939", "seed of the inputs, 0: another in each run")
    add("p_drop", "0", "share of weights that is dropped")
    add("drop_seed", "1", "seed of what is dropped")
    add("drop_offset", "0", "offset of what is dropped")
    add("drop_prefs", "0", "1: seed and offset are read from a tensor on the device")
    add("timer", "gpu", "gpu: events of the device where it has such, cpu: the clock of the host")
    add("warmup", "5", "calls before measuring")
    add("repeat", "20", "calls that are measured")
    add("kname", "0", "1: print names of kernels")
    add("json", "0", "1: write results to -jsonfile")
    add("jsonfile", f"fmha_{'bwd' if backward else 'fwd'}.json", "file of -json")
    made.add_argument("-device", default="", metavar="", help="cpu, cuda, hip-emulated, ... (default: cuda where there is one, else cpu)")
    if backward:
        add("dbias", "0", "1: the gradient of the bias, too")
        add("deterministic", "0", "1: the same bits in every run")
    for name in _REFUSED:
        made.add_argument(f"-{name}", help=argparse.SUPPRESS)
    return made


def _options(given: argparse.Namespace, backward: bool) -> FmhaOptions:
    for name, (allowed, reason) in _REFUSED.items():
        value = getattr(given, name)
        if value is not None and value not in allowed:
            raise UnsupportedError(f"-{name}={value}: {reason}" if reason else f"-{name}={value}: one of {', '.join(allowed)} is taken")
    _choice(given, "mode", ("batch", "0", "group", "1"))
    if given.mode in ("group", "1"):
        raise UnsupportedError(f"-mode={given.mode}: {_LENGTHS}; use -mode=batch")
    if given.prec in _UNBUILT:
        raise UnsupportedError(f"-prec={given.prec}: {_UNBUILT[given.prec]}: use one of {', '.join(PRECISIONS)}")
    heads, q_len, head_dim = _size(given, "h"), _size(given, "s"), _size(given, "d", 512)
    kv_heads = heads if given.h_k in ("-1", "0") else _size(given, "h_k")
    if heads % kv_heads:
        raise ArgumentError(f"-h={heads} is no multiple of -h_k={kv_heads}")
    bias = Bias.decode(given.bias)
    gradient = backward and _flag(given, "dbias")
    if gradient and bias.kind != "e":
        raise ArgumentError(f"-dbias=1 is the gradient of an elementwise bias, got -bias={given.bias}")
    if _flag(given, "json") and not given.jsonfile:
        raise ArgumentError("-jsonfile is the file of -json=1, got ''")
    scale, cap = _number(given, "scale_s", -_FLOAT32, _FLOAT32), _number(given, "logits_soft_cap", 0.0)
    offsets = _whole(given, "drop_seed", 0, 2**63 - 1), _whole(given, "drop_offset", 0, 2**63 - 1)
    kv_len = q_len if given.s_k == "-1" else _size(given, "s_k")
    Coordinates.decode(given.mask, q_len, kv_len)
    return FmhaOptions(
        backward=backward,
        validate=_whole(given, "v", 0, 2),
        batch=_size(given, "b"),
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=head_dim,
        value_dim=head_dim if given.d_v in ("-1", "0") else _size(given, "d_v", 512),
        scale=scale or 1.0 / math.sqrt(head_dim),
        soft_cap=cap,
        bias=bias,
        bias_gradient=gradient,
        precision=_choice(given, "prec", PRECISIONS),
        mask=given.mask,
        in_layout="bhsd" if _flag(given, "iperm") else "bshd",
        out_layout="bhsd" if _flag(given, "operm") else "bshd",
        column_major=_choice(given, "vlayout", ("r", "c")) == "c",
        lse=_flag(given, "lse"),
        init=INITS[_choice(given, "init", tuple(INITS))],
        seed=_whole(given, "seed", 0, 2**63 - 1),
        dropout=_number(given, "p_drop", 0.0, 1.0),
        dropout_seed=offsets,
        dropout_on_device=_flag(given, "drop_prefs"),
        deterministic=backward and _flag(given, "deterministic"),
        timer=_choice(given, "timer", ("gpu", "cpu")),
        warmup=_whole(given, "warmup", 0, 10**6),
        repeat=_whole(given, "repeat", 1, 10**6),
        names=_flag(given, "kname"),
        json=given.jsonfile if _flag(given, "json") else "",
        device=given.device,
    )


def _choice(given: argparse.Namespace, name: str, choices: Sequence[str]) -> str:
    value = getattr(given, name)
    if value not in choices:
        raise ArgumentError(f"-{name} is one of {', '.join(choices)}, got '{value}'")
    return value


def _flag(given: argparse.Namespace, name: str) -> bool:
    return _choice(given, name, ("0", "1")) == "1"


def _size(given: argparse.Namespace, name: str, largest: int = 2**31 - 1) -> int:
    if name in ("s", "s_k") and "," in getattr(given, name):
        raise UnsupportedError(f"-{name}={getattr(given, name)}: {_LENGTHS}; give one length")
    return _whole(given, name, 1, largest)


def _whole(given: argparse.Namespace, name: str, least: int, largest: int) -> int:
    value: Any = getattr(given, name)
    value = int(value) if re.fullmatch("[+-]?[0-9]{1,30}", value) else None
    if value is None or not least <= value <= largest:
        raise ArgumentError(f"-{name} is a whole number from {least} to {largest}, got '{getattr(given, name)}'")
    return value


def _number(given: argparse.Namespace, name: str, least: float, below: float = math.inf) -> float:
    try:
        value = float(getattr(given, name))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and least <= value < below):
        span = " of float32" if least == -_FLOAT32 else f" from {least:g}" + ("" if below == math.inf else f" to below {below:g}")
        raise ArgumentError(f"-{name} is a finite number{span}, got '{getattr(given, name)}'")
    return value
