"""The table `attn::Library` of a library: what its calls check, and which programs they run."""

import json
from collections.abc import Sequence

from attn_mlir.backends.ahead.bounds import check_reads
from attn_mlir.backends.ahead.request import Request
from attn_mlir.backends.host import Host

_SIZES = {"H": "HV"}
_KINDS = {"tensor": "TENSOR", "float": "REAL", "int": "INTEGER", "drop": "DROP", "keep": "KEEP_SCALE"}


def scalars_of(host: Host) -> list[str]:
    """The kinds of what a host function takes besides q, k and v, for `library_table`."""
    return ["tensor" if argument.shape is not None else argument.element for argument in host.arguments[3:]]


def element(name: str) -> str:
    """An element type of the IR as an `attn::Element`; scalars of a kernel's signature have "index"."""
    return f"attn::{name.upper()}"


def library_table(request: Request, scalars: Sequence[str]) -> str:
    """The table; `scalars` are the kinds that the kernel's signature has for what is captured.

    It names `machine`, `forward` where inference is wanted, and `training` and `backward` where there are gradients, which must be defined
    before.
    """
    arguments = [_argument(name, request.element, 4, columns) for name, columns in _inputs(request)]
    for name, capture, kind in zip(request.names[3:], request.captures, scalars, strict=True):
        of = capture.element if capture.kind == "tensor" else kind
        like = {"q": 0, "k": 1}.get(capture.like, -1)
        arguments.append(_argument(name, of, capture.rank, capture.columns, _KINDS[capture.kind], capture.nonzero, like))
    extents = [
        f'{{{3 + i}, {dim}, "{index}", attn::{_SIZES.get(size, size.upper())}}}'
        for i, capture in enumerate(request.captures)
        for dim, index, size in capture.size_of
    ]
    rows = [json.dumps(name) for name in request.outputs]
    training = "&training, &backward" if request.wrt else "nullptr, nullptr"
    forward = "&forward" if request.inference else "nullptr"
    if request.linear is not None:
        forward, training = "nullptr", f"nullptr, {'&backward' if request.wrt else 'nullptr'}"
    name = "base" if request.linear else "library"
    elements = f"{element(request.element)}, {element(request.score)}"
    return "\n".join(
        [
            check_reads(request),
            "static const attn::Argument arguments[] = {",
            *[f"    {{{each}}}," for each in arguments],
            "};",
            f"static const char *const rows[] = {{{', '.join(rows) or 'nullptr'}}};",
            f"static const int gradients[] = {{{', '.join(map(str, request.wrt)) or '0'}}};",
            f"static const attn::Extent extents[] = {{{', '.join(extents) or '{}'}}};",
            f'static const attn::Library {name} = {{"{request.name}", {elements}, {len(arguments)}, arguments, '
            f"{_places(request.layout[:4])}, {_places(request.layout[-4:])}, {len(rows)}, rows, {forward}, {training}, "
            f"{len(request.wrt)}, gradients, {len(extents)}, extents, check_reads, &machine}};",
        ]
    )


def linear_table(request: Request, shapes: Sequence[tuple[int, ...] | None]) -> str:
    """The table of a linear attention, after that of `library_table`; `shapes` are those of the host function's arguments, None of numbers.

    It names `program`, the forward pass.
    """
    linear = request.linear
    assert linear is not None
    places = [3 + linear.inputs.index(name) if name in linear.inputs else -1 for name in ("decay", "initial_state", "cu_seqlens")]
    columns = [shape[-1] if shape and i < 3 + len(linear.inputs) else -1 for i, shape in enumerate(shapes)]
    state = request.wrt.index(places[1]) if places[1] in request.wrt else -1
    heads = ", ".join(str(name in linear.by_head).lower() for name in "qk")
    turned = str(request.layout[:4] == "bshd").lower()
    fields = f"{', '.join(map(str, places))}, {turned}, {heads}, columns, {state}"
    return "\n".join(
        [
            f"static const int columns[] = {{{', '.join(map(str, columns))}}};",
            f"static const attn::LinearLibrary library = {{base, &program, {fields}}};",
        ]
    )


def _inputs(request: Request) -> tuple[tuple[str, int], ...]:
    return ("q", request.head_dim), ("k", request.head_dim), ("v", request.value_dim)


def _argument(name: str, of: str, rank: int, columns: int, kind: str = "TENSOR", nonzero: bool = False, like: int = -1) -> str:
    shape = ["-1"] * (rank - 1) + [str(columns)] if rank else ["0"]
    return f'"{name}", attn::{kind}, {element(of)}, {rank}, {{{", ".join(shape)}}}, {str(nonzero).lower()}, {like}'


def _places(order: str) -> str:
    return f"{{{', '.join(str(order.index(letter)) for letter in 'bhsd')}}}"
