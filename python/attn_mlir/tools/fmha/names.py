"""Names of the kernels that attn-fmha runs, after what the IR says of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from attn_mlir import driver
from attn_mlir.api.inputs import ELEMENTS
from attn_mlir.dialects import loaded
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend import program
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.tools.fmha import problem
from attn_mlir.tools.fmha.options import PRECISIONS, FmhaOptions

HEAD_DIMS = (32, 64, 96, 128, 192, 256)
_SCHEDULED = "tile-schedule"


def kernels(options: FmhaOptions) -> list[str]:
    """The kernels of one call, in their order: of the forward pass, or of the backward.

    Such as fmha_fwd_d128_fp16_batch_b32x64_cpu_nlogits_nbias_mc_nlse_ndropout: head dimensions, precision, block sizes of queries and keys,
    what generated it, and what it was generated for.
    """
    small = replace(options, batch=1, heads=options.heads // options.kv_heads, kv_heads=1, q_len=1, kv_len=1, device="cpu")
    functions, seed = problem.make(small).functions(), "tensor" if options.dropout_on_device else "int"
    form = program.Definition(scale=options.scale, lse=options.lse, dropout=(seed, seed) if options.dropout else None, **functions)
    traced = program.trace(form, Inputs(ELEMENTS[problem.DTYPES[options.precision]], options.head_dim, options.value_dim))
    device = options.device
    if options.backward:
        names = [captured.name for captured in traced.captures]
        wrt = ["q", "k", "v", *([f"arg{3 + names.index('bias')}"] if options.bias_gradient else [])]
        made = driver.compile_derivative(traced.text, device, "bwd", wrt, options.deterministic)
    else:
        made = driver.compile(traced.text, device)
    return list(_names(made.stages()[_SCHEDULED], options))


def listed(options: FmhaOptions, given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The kernels for every precision and usual head dimension, but for what `given` fixes; or "", and why there are none."""
    for precision in [options.precision] if "prec" in given else PRECISIONS:
        for head_dim in [options.head_dim] if "d" in given else HEAD_DIMS:
            value_dim = options.value_dim if "d_v" in given else head_dim
            try:
                for name in kernels(replace(options, precision=precision, head_dim=head_dim, value_dim=value_dim)):
                    yield name, ""
            except UnsupportedError as error:
                yield "", f"-prec={precision} -d={head_dim}: {error}"


def _names(scheduled: str, options: FmhaOptions) -> Iterator[str]:
    with loaded():
        module = ir.Module.parse(scheduled)
        for function in find_all(module.operation, "func.func"):
            if "tile.kernel" in function.attributes:
                yield "_".join([_what(function, options), *_traits(options)])


def _what(function: ir.Operation, options: FmhaOptions) -> str:
    """The part of a name that is about one kernel."""
    kernel = ir.DictAttr(function.attributes["tile.kernel"])
    rows, keys = (ir.IntegerAttr(kernel[name]).value for name in ("block_q", "block_kv"))
    called = ir.StringAttr(function.attributes["sym_name"]).value.removeprefix("attention").removeprefix("_bwd").removeprefix("_fwd")
    dims = f"d{options.head_dim}" + ("" if options.value_dim == options.head_dim else f"x{options.value_dim}")
    return f"fmha_{'bwd' if options.backward else 'fwd'}{called}_{dims}_{options.precision}_batch_b{rows}x{keys}_{_emitter(function)}"


def _emitter(function: ir.Operation) -> str:
    if "tile.schedule" in function.attributes:
        schedule = ir.DictAttr(function.attributes["tile.schedule"])
        return ir.StringAttr(schedule["emitter"]).value
    return ir.StringAttr(function.attributes["tile.target"]).value


def _traits(options: FmhaOptions) -> list[str]:
    mask = "" if options.coordinates.origin == "n" else options.coordinates.origin
    last = [("dbias", options.bias_gradient)] if options.backward else [("lse", options.lse)]
    order = [("deterministic", options.deterministic)] if options.backward else []
    flags = [*last, ("dropout", bool(options.dropout)), *order]
    return trait_words(bool(options.soft_cap), BIASES[options.bias.kind], mask, flags)


BIASES = {"n": "nbias", "e": "bias", "a": "alibi"}


def trait_words(soft_cap: bool, bias: str, mask: str, flags: Sequence[tuple[str, bool]]) -> list[str]:
    """What the kernels of CK's examples have in their names; what is not there has an n in front."""
    told = [name if is_there else f"n{name}" for name, is_there in flags]
    return ["logits" if soft_cap else "nlogits", bias, f"m{mask}" if mask else "nmask", *told]
