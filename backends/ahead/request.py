"""What a library made ahead of time is to hold, and the C functions that it has, whatever the target."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_mlir.backends.program import DTYPES
from attn_mlir.errors import ArgumentError
from attn_mlir.passes.intervals.capture_bounds import ReadPlan

_RESERVED = frozenset(
    "o saved saved_size sizes workspace workspace_size stream threads given results grads made library attn "
    "auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return "
    "short signed sizeof static struct switch typedef typeof typeof_unqual union unsigned void volatile while "
    "alignas alignof and and_eq asm bitand bitor bool catch char8_t char16_t char32_t class co_await co_return co_yield compl concept "
    "consteval constexpr constinit const_cast decltype delete dynamic_cast explicit export false friend mutable namespace new noexcept not "
    "not_eq nullptr operator or or_eq private protected public reinterpret_cast requires static_assert static_cast template this "
    "thread_local throw true try typeid typename using virtual wchar_t xor xor_eq "
    "DLTensor DLDevice DLDataType attn_mlir_sizes int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t size_t std "
    "EOF NULL NAN INFINITY I RAND_MAX BUFSIZ assert complex errno far huge imaginary "
    "linux near noreturn offsetof stderr stdin stdout unix".split()
)
"""Names of other parameters and of what generated code uses, what C and C++ keep to themselves, and macros of common systems."""
_HEADERS = frozenset(
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic stdbit stdbool "
    "stdckdint stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype unistd malloc memory pthread sched "
    "dlfcn omp".split()
)
"""Headers of the system that one of the same name beside a library would hide."""

MOST_BYTES = 200
"""Of the name of a file: systems take 255, and it is written under a longer one first."""


def _identifier(name: str) -> str:
    """The name as C takes it; other than those of gradients, and of constants of the header."""
    name = re.sub(r"\W", "_", name, flags=re.ASCII)
    name = name if re.match(r"[A-Za-z]", name) else f"captured{name}"
    return f"captured_{name}" if name.startswith(("d_", "kDL", "ATTN_MLIR_")) else name


@dataclass(frozen=True)
class Capture:
    """What the functions of an attention capture: a further argument of every C function.

    `kind` is "tensor", "float", "int", or of dropout "drop" and "keep", which C functions take as one probability. `element` and `rank` are
    those of a tensor; `size_of` has, by its dimensions, the size of the problem that it must have at least, and the index that asks for it.
    `value` is that of a number now, for the header. `like` is "q" or "k" for a tensor that a further product multiplies, which has
    `columns` and otherwise the sizes and the order of these.
    """

    name: str
    kind: str
    element: str = ""
    rank: int = 0
    nonzero: bool = False
    size_of: tuple[tuple[int, str, str], ...] = ()
    value: str = ""
    like: str = ""
    columns: int = -1


@dataclass(frozen=True)
class LinearRequest:
    """What a linear attention has besides an attention: its first captures are `inputs`, "decay", "initial_state" and "cu_seqlens".

    `segment`: of how many positions are segments that are computed at the same time; 0: sequences are whole. `by_head` names those of "q"
    and "k" that need as many heads as v has.
    """

    inputs: tuple[str, ...] = ()
    segment: int = 0
    by_head: tuple[str, ...] = ()

    @property
    def sequences(self) -> str:
        """How many states there are, in words."""
        return "sequences" if "cu_seqlens" in self.inputs else "B"


@dataclass(frozen=True)
class Request:
    """An attention to compile: everything that a backend must know of it.

    `text` is the module, `written` the one with the backward pass that its user wrote, "" where it is derived. q, k and v have `element`;
    `layout` is that of q, k, v and o (see `runtime.orders`). `outputs` are the row outputs, `wrt` the positions of the arguments that have
    a gradient (q is 0, the first capture 3), none where only the forward pass is wanted. `plan` tells how captured tensors are read.
    """

    name: str
    text: str
    written: str
    element: str
    head_dim: int
    value_dim: int
    layout: str
    captures: tuple[Capture, ...]
    outputs: tuple[str, ...]
    wrt: tuple[int, ...]
    plan: ReadPlan
    linear: "LinearRequest | None" = None
    """What a linear attention has besides; None for attention."""
    deterministic: bool = False
    """Whether gradients must have the same bits in every run."""
    inference: bool = True
    """Whether the forward pass without gradients is wanted."""
    labels: tuple[str, ...] = ()
    """The names that captures have in `text`, where it has locations; else they are called by their number."""

    @property
    def queries(self) -> tuple[int, ...]:
        """The positions of tensors that have the sizes of q, besides q."""
        return tuple(3 + i for i, capture in enumerate(self.captures) if capture.like == "q")

    @property
    def score(self) -> str:
        """The element of row outputs."""
        return "f64" if self.element == "f64" else "f32"

    def argument(self, position: int) -> str:
        """The name by which derivatives know an argument."""
        if position < 3:
            return "qkv"[position]
        return self.labels[position - 3] if self.labels else f"arg{position}"

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the row outputs in C, each once."""
        made: list[str] = []
        for output in self.outputs:
            name = _identifier(output)
            while name in _RESERVED or name in ("q", "k", "v") or name in made:
                name += "_"
            made.append(name)
        return tuple(made)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all arguments in C, each once; the two numbers of dropout have one."""
        taken: dict[str, None] = dict.fromkeys("qkv")
        made = list("qkv")
        reserved = _RESERVED | set(self.rows)
        for capture in self.captures:
            if capture.kind in ("drop", "keep"):
                made.append("dropout_p")
                continue
            name = _identifier(capture.name)
            while name in reserved or name in taken:
                name += "_"
            taken[name] = None
            made.append(name)
        return tuple(made)


@dataclass(frozen=True)
class Library:
    """What was made: the shared library, its header, and the names of its C functions."""

    library: Path
    header: Path
    functions: tuple[str, ...]


@dataclass(frozen=True)
class CParameter:
    """A parameter of a C function: its type in C, its name, and what it is, for the comment."""

    type: str
    name: str
    about: str = ""


_TENSOR, _RESULT = "const DLTensor *", "DLTensor *"
WORKSPACE = (
    CParameter("void *", "workspace"), CParameter("size_t ", "workspace_size"), CParameter("void *", "stream"),
    CParameter("int32_t ", "threads"),
)  # fmt: skip


def inputs(request: Request) -> list[CParameter]:
    """q, k, v and what is captured."""
    if request.linear is not None:
        return _linear_inputs(request, request.linear)
    orders = f"[{', '.join(_order(request.layout[:4], 'Hq', 'Sq', request.head_dim))}]"
    keys = _order(request.layout[:4], "Hkv", "Skv", request.head_dim)
    values = _order(request.layout[:4], "Hkv", "Skv", request.value_dim)
    dtype = str(DTYPES[request.element]).removeprefix("torch.")
    made = [
        CParameter(_TENSOR, "q", f"{dtype} {orders}"),
        CParameter(_TENSOR, "k", f"{dtype} [{', '.join(keys)}]"),
        CParameter(_TENSOR, "v", f"{dtype} [{', '.join(values)}]"),
    ]
    return made + _captured(request, 0)


def _captured(request: Request, first: int) -> list[CParameter]:
    """What is captured, from capture number `first` on."""
    made: list[CParameter] = []
    for name, capture in zip(request.names[3 + first :], request.captures[first:], strict=True):
        match capture.kind:
            case "tensor" if capture.like:
                heads, length = ("Hq", "Sq") if capture.like == "q" else ("Hkv", "Skv")
                sizes = ", ".join(_order(request.layout[:4], heads, length, capture.columns))
                made.append(CParameter(_TENSOR, name, f"{str(DTYPES[capture.element]).removeprefix('torch.')} [{sizes}]"))
            case "tensor":
                least = ["any"] * capture.rank
                for dim, _, size in capture.size_of:
                    least[dim] = f">= {size}"
                dtype = "uint8" if capture.element == "u8" else str(DTYPES[capture.element]).removeprefix("torch.")
                made.append(CParameter(_TENSOR, name, f"{dtype}, sizes [{', '.join(least)}], any strides"))
            case "float" | "int":
                about = f"{'not 0; ' if capture.nonzero else ''}{capture.value} when the library was made"
                made.append(CParameter("double " if capture.kind == "float" else "int64_t ", name, about))
            case _ if not any(parameter.name == "dropout_p" for parameter in made):
                made.append(CParameter("double ", "dropout_p", "the probability with which a weight becomes 0"))
    return made


def _linear_inputs(request: Request, linear: LinearRequest) -> list[CParameter]:
    dtype, score = (str(DTYPES[of]).removeprefix("torch.") for of in (request.element, request.score))
    heads = {"q": "Hq", "k": "Hk", "v": "H"} | dict.fromkeys(linear.by_head, "H")
    columns = {"q": request.head_dim, "k": request.head_dim, "v": request.value_dim}
    made = [
        CParameter(_TENSOR, name, f"{dtype} [{', '.join(_order(request.layout[:4], heads[name], 'T', columns[name]))}]") for name in "qkv"
    ]
    turned = request.layout[:4] == "bshd"
    for name, kind, capture in zip(request.names[3:], linear.inputs, request.captures, strict=False):
        sizes = ["B", "T", "H", str(request.head_dim)] if turned else ["B", "H", "T", str(request.head_dim)]
        match kind:
            case "decay":
                sizes = ["H", str(request.head_dim)][: capture.rank] if capture.rank < 3 else sizes[: capture.rank]
                about = f"{score} [{', '.join(sizes)}], logarithms"
            case "initial_state":
                about = f"{score} [{linear.sequences}, H, {request.head_dim}, {request.value_dim}]"
            case _:
                about = f"{str(DTYPES[capture.element]).removeprefix('torch.')} [sequences + 1], where each begins, B is 1"
        made.append(CParameter(_TENSOR, name, about))
    return made + _captured(request, len(linear.inputs))


def results(request: Request, prefix: str = "", type_: str = _RESULT) -> list[CParameter]:
    """o and the row outputs, or with the prefix "d_" their gradients."""
    score = str(DTYPES[request.score]).removeprefix("torch.")
    dtype = str(DTYPES[request.element]).removeprefix("torch.")
    o = f"{dtype} [{', '.join(_order(request.layout[-4:], 'Hq', 'Sq', request.value_dim))}]"
    note = ", or NULL for zeros" if prefix else ""
    if request.linear is not None:
        o = f"{dtype} [{', '.join(_order(request.layout[-4:], 'H', 'T', request.value_dim))}]"
        state = f"{score} [{request.linear.sequences}, H, {request.head_dim}, {request.value_dim}]{note}"
        return [CParameter(type_, f"{prefix}o", o), *[CParameter(type_, f"{prefix}{name}", state) for name in request.rows]]
    return [
        CParameter(type_, f"{prefix}o", o),
        *[CParameter(type_, f"{prefix}{name}", f"{score} [B, Hq, Sq]{note}") for name in request.rows],
    ]


def gradients(request: Request) -> list[CParameter]:
    """The gradients."""
    return [CParameter(_RESULT, f"d_{request.names[i]}", f"as {request.names[i]}") for i in request.wrt]


def path_of(out: Any) -> Path:
    """The path of a library. Raises ArgumentError for what names no file."""
    text = os.fspath(out) if isinstance(out, (str, os.PathLike)) else None
    if not isinstance(text, str) or not Path(text).name or "\0" in text:
        raise ArgumentError(f"out is the path of the library's file, such as 'libattention.so', got {out!r}")
    if len(os.fsencode(Path(text).name)) > MOST_BYTES:
        raise ArgumentError(f"the name of the library's file has more than {MOST_BYTES} bytes: give a shorter one")
    return Path(text)


def check_file(path: Path) -> None:
    """Checks that a file can be written to `path`, whose folder is made. Raises ArgumentError."""
    try:
        if path.is_dir():
            raise ArgumentError(f"{path} is a folder: name a file, such as {path / 'libattention.so'}")
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"the folder {path.parent} cannot be made: {error.strerror}") from None
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ArgumentError(f"the folder {path.parent} cannot be written to")


def check_place(out: Path, name: str) -> None:
    """Checks that a library can be written to `out`, and its header beside it. Raises ArgumentError."""
    header = out.with_name(f"{name}.h")
    if len(name) > MOST_BYTES:
        raise ArgumentError(f"the names of functions begin with more than {MOST_BYTES} letters: give a shorter name=")
    if name.lower() in _HEADERS:
        raise ArgumentError(f"the header would be {header.name}, and hide the system's: give another name=, such as '{name}_attention'")
    if header.name.lower() == out.name.lower():
        raise ArgumentError(f"the header would be written over the library {out}: end its name with .so")
    for path in (out, header):
        check_file(path)


def functions(request: Request) -> dict[str, list[CParameter]]:
    """The parameters of each function of the library that takes tensors, by its name without the library's."""
    given, saved = inputs(request), [CParameter("void *", "saved"), CParameter("size_t ", "saved_size")]
    made = {
        "sizes": [*given, CParameter("attn_mlir_sizes *", "sizes")],
        "forward": [*given, *results(request), *WORKSPACE],
    }
    if request.wrt and request.linear is not None:
        made["backward"] = [*given, *results(request, "d_", _TENSOR), *gradients(request), *WORKSPACE]
    elif request.wrt:
        kept = [CParameter("const void *", "saved"), saved[1]]
        made["training_forward"] = [*given, *results(request), *saved, *WORKSPACE]
        made["backward"] = [
            *given, *results(request, "", _TENSOR), *kept, *results(request, "d_", _TENSOR), *gradients(request), *WORKSPACE,
        ]  # fmt: skip
    return made


def declaration(name: str, parameters: Iterable[CParameter]) -> str:
    """A function as it is declared in C, in lines of at most 140 characters."""
    text, line = [], f"int32_t {name}("
    rest = [f"{p.type}{p.name}" for p in parameters]
    for i, each in enumerate(rest):
        each += ", " if i + 1 < len(rest) else ")"
        if len(line) + len(each) > 140:
            text.append(line.rstrip())
            line = "    "
        line += each
    return "\n".join([*text, line])


def _order(order: str, heads: str, length: str, columns: int) -> Sequence[str]:
    sizes = {"b": "B", "h": heads, "s": length, "d": str(columns)}
    return [sizes[letter] for letter in order]
