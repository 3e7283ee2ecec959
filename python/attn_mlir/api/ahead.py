"""`compile_ahead`: an attention as a shared library with C functions, for programs without Python."""

import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from attn_mlir import driver
from attn_mlir.api.attention import Attention
from attn_mlir.api.dropout import NONE, dropout_of
from attn_mlir.api.engine import AttentionEngine
from attn_mlir.api.extra_qk import extra_pairs, pair_names, with_dims
from attn_mlir.api.given_masks import with_function
from attn_mlir.api.inputs import ELEMENTS, MAX_HEAD_DIM, MAX_STATE_DIM, check_dims, check_inputs, layout_of
from attn_mlir.api.linear import LinearAttention
from attn_mlir.api.linear_engine import LinearAttentionEngine
from attn_mlir.api.linear_inputs import OFFSETS, STEPS, check_linear
from attn_mlir.api.options import RecurrenceForm, call_form
from attn_mlir.api.scale import scale_form
from attn_mlir.backends.ahead.request import Capture, Library, LinearRequest, Request, check_place, path_of
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.entry import Entry
from attn_mlir.passes.intervals.capture_bounds import make_plan
from attn_mlir.runtime.programs import Program, program_of

BuiltT = TypeVar("BuiltT")
_KINDS = {"dropout_drop": "drop", "dropout_scale": "keep"}
_DECAYS = ("none", *(form for form, _ in STEPS.values()))


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """What `compile_ahead` must know of q, k and v: their dtype, the head dimension of q and k, and that of v (None: the same).

    extra_dims: the head dimension of each additional pair of q and k, where the attention has any (`extra_qk`); None: that of q.
    """

    dtype: torch.dtype = torch.float32
    head_dim: int = 64
    value_dim: int | None = None
    extra_dims: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class LinearSpec:
    """What `compile_ahead` must know of the inputs of a linear attention.

    dtype: that of q, k and v. key_dim: columns of q and k; value_dim: those of v, None: the same. decay: "none", "head" [H], "head channel"
    [H, K], "step" [B, H, T] or "step channel" [B, H, T, K]. initial_state: whether there is one. cu_seqlens: the dtype of offsets of
    sequences, torch.int32 or torch.int64; None: there are none.
    """

    dtype: torch.dtype = torch.float32
    key_dim: int = 64
    value_dim: int | None = None
    decay: str = "step"
    initial_state: bool = False
    cu_seqlens: torch.dtype | None = None


@dataclasses.dataclass(frozen=True)
class _Subject:
    """What a library is of: a trace, the values of its captures now, q, k and v, and what a linear attention has besides."""

    entry: Entry
    values: Sequence[Any]
    inputs: Inputs
    layout: Any
    linear: LinearRequest | None = None


def compile_ahead(
    attention: Attention | AttentionEngine | LinearAttention | LinearAttentionEngine,
    inputs: "InputSpec | LinearSpec | Sequence[torch.Tensor] | None" = None,
    target: str = "cpu",
    out: str | Path = "libattention.so",
    *,
    name: str | None = None,
    backward: bool = True,
    wrt: Sequence[str] | None = None,
    compiler: str | None = None,
    deterministic: bool = False,
) -> Library:
    """Makes a shared library of an attention, and beside it a header with its C functions over DLPack's `DLTensor`.

    attention: an `Attention`, a `LinearAttention`, or an engine of either, whose custom inputs are additional arguments, and whose
    final_rowscales additional results.
    inputs: tensors (q, k, v) such as those of calls, of which dtype and head dimensions count, or an `InputSpec`; None for engines, which
    know their own. Where the attention has `extra_qk`, tensors (q, k, v, q2, k2, ...). For a `LinearAttention`: (q, k, v, decay,
    initial_state, cu_seqlens), of which the last ones may be missing, or a `LinearSpec`. Batch, heads and lengths are free in the library.
    target: "cpu", for processors with the instruction sets of this machine, "sm_90a", for H100 and H200, or "gfx90a", for MI210 and MI250.
    out: where the library is written, a static one where the name ends with .a; the header is `name`.h in the same folder. name: what the
    names of the functions begin with; None: that of the file without "lib".

    backward: whether there are functions for gradients, too. wrt: the names of the inputs that have one; None: q, k, v, q2, k2, ..., decay
    and initial state, and of captured tensors those that require a gradient now; custom inputs of engines have one where they are named.
    compiler: the command of the system's C++ compiler; None: $CXX, c++, g++ or clang++. deterministic: whether gradients have the same bits
    in every run on a GPU, too.

    What the functions of the attention capture are further arguments, in the order and under the names that the header tells. Results have
    the bits that calls from Python have. Raises ArgumentError for arguments that do not fit, UnsupportedError for other targets, for tuned
    attentions, for functions that make tensors themselves, and where a compiler is missing.
    """
    path = path_of(out)
    requests = requests_of(attention, inputs, path, _name(path, name), backward=backward, wrt=wrt, deterministic=deterministic)
    version = sys.modules["attn_mlir"].__version__
    return with_lines(requests, lambda request: driver.build_library(request, target, path, compiler, version))


def with_lines(requests: tuple[Request, Request], build: Callable[[Request], BuiltT]) -> BuiltT:
    """What `build` makes of the first request; of the second, with locations, where the message is to show the user's lines."""
    try:
        return build(requests[0])
    except CompileError:
        return build(requests[1])


def requests_of(
    attention: Attention | AttentionEngine | LinearAttention | LinearAttentionEngine,
    inputs: "InputSpec | LinearSpec | Sequence[torch.Tensor] | None",
    path: Path | None,
    prefix: str,
    *,
    backward: bool,
    wrt: Sequence[str] | None,
    deterministic: bool,
) -> tuple[Request, Request]:
    """What a library holds, at `path` if there is one: a request without and one with the user's lines. Raises as `compile_ahead` does."""
    if not isinstance(attention, (Attention, AttentionEngine, LinearAttention, LinearAttentionEngine)):
        raise ArgumentError(
            "compile_ahead takes an attn_mlir.Attention(...), AttentionEngine(...), LinearAttention(...) or LinearAttentionEngine(...), "
            f"got {type(attention).__name__}"
        )
    if attention._tuning is not None:
        raise UnsupportedError(
            f"tuned schedules are not compiled ahead of time yet: make the {type(attention).__name__} without tune and tune_file"
        )
    if wrt is not None and not backward:
        raise ArgumentError("wrt names what has a gradient, and backward=False makes none: leave one of them out")
    linear = isinstance(attention, (LinearAttention, LinearAttentionEngine))
    form: Any = _linear_form(attention, inputs) if linear else _inputs(attention, inputs)
    if path is not None:
        check_place(path, prefix)
    subject = _linear_subject(attention, form) if linear else _subject(attention, form, bool(backward))
    return _requests(subject, prefix, bool(backward), wrt, bool(deterministic))


def _inputs(attention: Attention | AttentionEngine, inputs: Any) -> Inputs:
    """dtype and head dimensions. Raises ArgumentError, and UnsupportedError for engines that libraries do not hold."""
    if not isinstance(attention, AttentionEngine):
        return _given_inputs(attention, inputs)
    own = attention._shapes.inputs
    if inputs is not None and _given_inputs(attention, inputs) != own:
        raise ArgumentError(
            f"the engine is made for {own.element} with {own.head_dim} columns of q and {own.value_dim} of v: "
            "leave out inputs, they are its own"
        )
    if attention._blocks is not None:
        raise UnsupportedError("tables of blocks are not compiled ahead of time yet: make the engine with a mask function alone")
    if attention._shared:
        raise UnsupportedError(
            "kv_shared engines are not compiled ahead of time yet: join q with q_pe, and k with k_pe, and use v=k[..., :Dv]"
        )
    return own


def _given_inputs(attention: Attention | AttentionEngine, inputs: Any) -> Inputs:
    pairs = attention._extra if isinstance(attention, Attention) else 0
    if isinstance(inputs, InputSpec):
        dims, extra = _dims(inputs.dtype, head_dim=inputs.head_dim, value_dim=inputs.value_dim), inputs.extra_dims
        if extra is None:
            return Inputs(*dims, (inputs.head_dim,) * pairs)
        if not isinstance(extra, (tuple, list)) or len(extra) != pairs:
            raise ArgumentError(f"extra_dims are {pairs} head dimensions, one for each additional pair of q and k; got {extra!r}")
        check_dims(**{f"the head dimension of q{number}": size for number, size in enumerate(extra, 2)})
        return Inputs(*dims, tuple(extra))
    count = 3 + 2 * pairs
    if not isinstance(inputs, (tuple, list)) or len(inputs) != count:
        given = f"{len(inputs)} of them" if isinstance(inputs, (tuple, list)) else type(inputs).__name__
        wanted = ", ".join(["q", "k", "v", *pair_names(pairs)])
        raise ArgumentError(f"inputs are {count} tensors, ({wanted}), or an attn_mlir.InputSpec(dtype, head_dim); got {given}")
    q, k, v, *extra = inputs
    problem = check_inputs(q, k, v, _layout(attention))
    return with_dims(problem, extra_pairs(extra, q, problem, problem.layout)).inputs


def _linear_form(attention: LinearAttention | LinearAttentionEngine, inputs: Any) -> RecurrenceForm:
    """The form of the inputs that were given, as far as they tell it. Raises ArgumentError."""
    if isinstance(attention, LinearAttentionEngine):
        if inputs is not None:
            raise ArgumentError("a LinearAttentionEngine knows dtype and head dimensions: leave out inputs")
        return attention._form(attention._decay)
    if isinstance(inputs, LinearSpec):
        return _form_of(inputs)
    if not isinstance(inputs, (tuple, list)) or not 3 <= len(inputs) <= 6:
        raise ArgumentError(
            "inputs of a linear attention are tensors (q, k, v, decay, initial_state, cu_seqlens), the last of which may be missing, or "
            f"an attn_mlir.LinearSpec(dtype, key_dim); got {type(inputs).__name__}"
        )
    q, k, v, decay, state, offsets = (*inputs, None, None, None)[:6]
    return call_form(check_linear((q, k, v), decay, state, offsets, attention._options.layout), 1.0, False, None)


def _form_of(spec: LinearSpec) -> RecurrenceForm:
    dims = _dims(spec.dtype, MAX_STATE_DIM, key_dim=spec.key_dim, value_dim=spec.value_dim)
    if spec.decay not in _DECAYS:
        raise ArgumentError(f"decay is one of {', '.join(map(repr, _DECAYS))}, got {spec.decay!r}")
    if spec.cu_seqlens is not None and not (isinstance(spec.cu_seqlens, torch.dtype) and spec.cu_seqlens in OFFSETS):
        raise ArgumentError(f"cu_seqlens is torch.int32, torch.int64 or None, got {spec.cu_seqlens!r}")
    offsets = "" if spec.cu_seqlens is None else OFFSETS[spec.cu_seqlens]
    return RecurrenceForm(*dims, 1.0, spec.decay, bool(spec.initial_state), offsets=offsets)


def _dims(dtype: Any, most: int = MAX_HEAD_DIM, **dims: Any) -> tuple[str, int, int]:
    """Element type and head dimensions of q and v, by the names that a spec gives them. Raises ArgumentError."""
    if not isinstance(dtype, torch.dtype) or dtype not in ELEMENTS:
        raise ArgumentError(f"dtype is {dtype}: use float32, float16, bfloat16 or float64")
    (of_q, head_dim), (of_v, value_dim) = dims.items()
    value_dim = head_dim if value_dim is None else value_dim
    check_dims(most, **{of_q: head_dim, of_v: value_dim})
    return ELEMENTS[dtype], head_dim, value_dim


def _layout(attention: Attention | AttentionEngine) -> Any:
    return attention._given if isinstance(attention, AttentionEngine) else attention._options.layout


def _name(path: Path, name: str | None) -> str:
    """What the functions' names begin with. Raises ArgumentError for what is no identifier of C."""
    found = re.sub(r"^lib", "", path.name.split(".")[0]) if name is None else name
    if not isinstance(found, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", found):
        raise ArgumentError(f"functions cannot be named '{found}_forward': give a name of letters, digits and _, such as name='attention'")
    return found


def _subject(attention: Attention | AttentionEngine, inputs: Inputs, backward: bool) -> _Subject:
    """What a library of an attention is of."""
    dropout = dropout_of(attention.dropout_p, (0, 0), None) if attention.dropout_p else NONE
    factor = 0.0
    if isinstance(attention, AttentionEngine):
        entry, scan = attention._find(attention._dtypes, None, backward, dropout.form)
    else:
        options = attention._options._replace(functions=with_function(attention._functions))
        entry, scan, factor = options.find(inputs, None, dropout.form)
    tensors = dict.fromkeys(pair_names(len(inputs.extra_dims)))
    return _Subject(entry, entry.captures(scan, factor, {**dropout.values, **tensors}), inputs, _layout(attention))


def _linear_subject(attention: LinearAttention | LinearAttentionEngine, form: RecurrenceForm) -> _Subject:
    """The same of a linear attention."""
    factor, layout = 0.0, "bhsd"
    if isinstance(attention, LinearAttentionEngine):
        entry, scan = attention._find(attention._dtypes, None, form.decay)
    else:
        options = attention._options
        if options.mods[5] is not None or options.read_before:
            raise UnsupportedError("libraries made ahead of time have no delta rule yet: leave erase_mod out, or compile in Python")
        layout, (scale, factor) = options.layout, scale_form(options.scale, form.head_dim)
        form = form._replace(scale=scale, final_state=options.final, segment=options.segment)
        entry, scan = form.find(options.mods, None)
    given = tuple(entry.traced.linear or ())
    linear = LinearRequest(given, 0 if "cu_seqlens" in given else form.segment or 0, tuple(entry.traced.by_head))
    return _Subject(entry, entry.captures(scan, factor), form.inputs, layout, linear)


def _requests(subject: _Subject, name: str, backward: bool, wrt: Sequence[str] | None, deterministic: bool) -> tuple[Request, Request]:
    """The request with modules without and with the user's lines."""
    inputs, program = subject.inputs, program_of(subject.entry)
    refuse_outputs(program)
    plan, captures = make_plan(program.written[0] or program.text, program.names), _captures(subject, program)
    plain = Request(
        name, program.text, program.written[0], inputs.element, inputs.head_dim, inputs.value_dim, layout_of(subject.layout), captures,
        program.outputs, (), plan, subject.linear, deterministic,
    )  # fmt: skip
    plain = dataclasses.replace(plain, wrt=_positions(plain, program, subject.values, wrt) if backward else ())
    return plain, dataclasses.replace(plain, text=program.located, written=program.written[1], labels=program.names)


def refuse_outputs(program: Program) -> None:
    """Raises UnsupportedError for a row of several weights, whose outputs libraries do not have."""
    if program.weights > 1:
        raise UnsupportedError(
            f"a row of {program.weights} weights, which has as many outputs, is not compiled ahead of time yet: make a library for each "
            "weight, of an attention whose row returns it alone"
        )


def _captures(subject: _Subject, program: Program) -> tuple[Capture, ...]:
    """What functions capture, as a library takes it."""
    made = []
    for i, each in enumerate(subject.entry.traced.captures):
        if each.source[0] == "constant":
            raise UnsupportedError(
                f"`{each.name}` is made by a function while it is traced, and no argument of C functions: make it outside of the function"
            )
        kind = _KINDS.get(each.name, each.kind) if each.source[0] == "dropout" else each.kind
        value = "" if each.kind == "tensor" else str(subject.values[i])
        made.append(capture_of(program, i, kind, each.element, each.rank, value))
    return tuple(made)


def capture_of(program: Program, position: int, kind: str, element: str, rank: int, value: str = "") -> Capture:
    """A capture of a program, which knows the sizes that it needs and whether a product multiplies it, as a library takes it."""
    sizes = tuple((extent.dim, extent.index, extent.size) for at, extent in program.extents if at == position)
    like, columns = next(((role, columns) for at, role, columns in program.products if at == position), ("", -1))
    return Capture(program.names[position], kind, element, rank, position in program.nonzero, sizes, value, like, columns)


def _positions(request: Request, program: Program, values: Sequence[Any], wrt: Sequence[str] | None) -> tuple[int, ...]:
    """The arguments that have a gradient. Raises ArgumentError for names of none."""
    names = request.names
    can = [i for i in range(len(names)) if _is_float(request, i) and program.takes_derivative(i)]
    if wrt is None:
        always = 3 + (0 if request.linear is None else len(request.linear.inputs))
        pairs = {3 + position for position, _, _ in program.products}
        return tuple(i for i in can if i < always or i in pairs or getattr(values[i - 3], "requires_grad", False))
    if not isinstance(wrt, (list, tuple)) or not wrt or not all(isinstance(name, str) for name in wrt):
        raise ArgumentError(f"wrt is a list of names such as ['q', 'k', 'v'], got {wrt!r}; backward=False makes no gradients")
    # By the name in C, or by that in Python where this is another one.
    called = {names[i]: i for i in can} | {c.name: 3 + n for n, c in enumerate(request.captures) if 3 + n in can and c.name not in names}
    unknown = [name for name in wrt if name not in called]
    if unknown:
        raise ArgumentError(f"wrt names {unknown[0]!r}, but these have a gradient: {', '.join(names[i] for i in can)}")
    return tuple(sorted({called[name] for name in wrt}))


def _is_float(request: Request, position: int) -> bool:
    return position < 3 or request.captures[position - 3].element in ("f16", "bf16", "f32", "f64")
