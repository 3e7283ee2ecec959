"""What attn-fmha prints and writes: the columns and keys of CK's examples."""

import json
from dataclasses import dataclass
from pathlib import Path

from attn_mlir.errors import ArgumentError
from attn_mlir.tools.fmha.options import FmhaOptions


@dataclass(frozen=True)
class Measured:
    """A run's speed; `milliseconds` is None on an emulated device, whose time says nothing."""

    milliseconds: float | None
    flops: int
    bytes: int

    @property
    def tflops(self) -> float:
        """10^12 floating point operations a second."""
        return self.flops / 1e9 / self.milliseconds if self.milliseconds else 0.0

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second."""
        return self.bytes / 1e6 / self.milliseconds if self.milliseconds else 0.0

    def __str__(self) -> str:
        if self.milliseconds is None:
            return "emulated, not timed"
        return f"{self.milliseconds:.3f} ms, {self.tflops:.2f} TFlops, {self.gb_per_s:.2f} GB/s"


def problem_line(options: FmhaOptions) -> str:
    """The line's first part, which is there before anything runs."""
    o = options
    parts = [f"b:{o.batch}", f"h:{o.heads}/{o.kv_heads}", f"s:{o.q_len}/{o.kv_len}", f"d:{o.head_dim}/{o.value_dim}"]
    if o.backward:
        parts += [f"scale:{o.scale:.6g}", f"bias:{o.bias}", f"dbias:{int(o.bias_gradient)}", f"p_drop:{o.dropout:.6g}"]
        parts += [f"deterministic:{int(o.deterministic)}", f"mask:{o.coordinates}"]
    else:
        parts += [f"scale_s:{o.scale:.6g}", f"bias:{o.bias}", f"p_drop:{o.dropout:.6g}", f"lse:{int(o.lse)}", f"mask:{o.coordinates}"]
    parts += [f"v:{'c' if o.column_major else 'r'}"]
    return f"[{o.precision}|batch|{_layouts(o)}] {', '.join(parts)}"


def write_json(options: FmhaOptions, measured: Measured, valid: bool | None) -> None:
    """Writes the results to the file of -jsonfile, with CK's keys. Raises ArgumentError where that cannot be written."""
    o = options
    common = {"prec": o.precision, "mode": "batch"}
    sizes = {"batch": o.batch, "nhead": o.heads, "nhead_k": o.kv_heads, "seqlen_q": o.q_len, "seqlen_k": o.kv_len}
    dims = {"hdim_q": o.head_dim, "hdim_v": o.value_dim}
    checked = {"verification": {True: "pass", False: "fail", None: "none"}[valid]}
    speed = {"perf": [{"time": measured.milliseconds, "tflops": measured.tflops, "gbytes": measured.gb_per_s}]}
    layout = "c" if o.column_major else "r"
    if o.backward:
        permuted = {"i_perm": str(int(o.in_layout == "bhsd")), "o_perm": str(int(o.out_layout == "bhsd"))}
        rest = {"scale": o.scale, "bias": str(o.bias), "use_dbias": o.bias_gradient, "p_drop": o.dropout}
        rest |= {"deterministic": "true" if o.deterministic else "false", "mask": str(o.coordinates)}
        rest |= {"mask_left": o.coordinates.left, "mask_right": o.coordinates.right, "vlayout": layout}
        made = {"name": "fmha_bwd", **common, **permuted, **sizes, **dims, **rest, "device": o.device, **checked, **speed}
    else:
        rest = {"scale_s": o.scale, "p_drop": o.dropout, "lse": o.lse, "bias": str(o.bias), "mask": str(o.coordinates), "vlayout": layout}
        made = {"name": "fmha_fwd", **common, "io_layout": _layouts(o), **sizes, **dims, **rest, "device": o.device, **checked, **speed}
    try:
        Path(o.json).write_text(json.dumps(made, indent=1) + "\n")
    except OSError as error:
        raise ArgumentError(f"-jsonfile: {o.json} cannot be written: {error.strerror}") from None


def _layouts(options: FmhaOptions) -> str:
    return options.in_layout if options.in_layout == options.out_layout else f"{options.in_layout}-{options.out_layout}"
