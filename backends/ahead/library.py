"""The table `attn::Library` of a library: what its calls check, and which programs they run."""

import json
from collections.abc import Sequence

from attn_mlir.backends.ahead.bounds import check_reads
from attn_mlir.backends.ahead.request import Request

_KINDS = {"tensor": "TENSOR", "float": "REAL", "int": "INTEGER", "drop": "DROP", "keep": "KEEP_SCALE"}


def element(name: str) -> str:
    """An element type of the IR as an `attn::Element`; scalars of a kernel's signature have "index"."""
    return f"attn::{name.upper()}"


def library_table(request: Request, scalars: Sequence[str]) -> str:
    """The table; `scalars` are the kinds that the kernel's signature has for what is captured.

    It names `forward` and `machine`, and `training` and `backward` where there are gradients, which must be defined before.
    """
    arguments = [_argument(name, request.element, 4, columns) for name, columns in _inputs(request)]
    for name, capture, kind in zip(request.names[3:], request.captures, scalars, strict=True):
        of = capture.element if capture.kind == "tensor" else kind
        arguments.append(_argument(name, of, capture.rank, -1, _KINDS[capture.kind], capture.nonzero))
    extents = [
        f'{{{3 + i}, {dim}, "{index}", attn::{size.upper()}}}'
        for i, capture in enumerate(request.captures)
        for dim, index, size in capture.size_of
    ]
    rows = [json.dumps(name) for name in request.outputs]
    training = "&training, &backward" if request.wrt else "nullptr, nullptr"
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
            f'static const attn::Library library = {{"{request.name}", {elements}, {len(arguments)}, arguments, '
            f"{_places(request.layout[:4])}, {_places(request.layout[-4:])}, {len(rows)}, rows, &forward, {training}, "
            f"{len(request.wrt)}, gradients, {len(extents)}, extents, check_reads, &machine}};",
        ]
    )


def _inputs(request: Request) -> tuple[tuple[str, int], ...]:
    return ("q", request.head_dim), ("k", request.head_dim), ("v", request.value_dim)


def _argument(name: str, of: str, rank: int, columns: int, kind: str = "TENSOR", nonzero: bool = False) -> str:
    shape = ["-1"] * (rank - 1) + [str(columns)] if rank else ["0"]
    return f'"{name}", attn::{kind}, {element(of)}, {rank}, {{{", ".join(shape)}}}, {str(nonzero).lower()}'


def _places(order: str) -> str:
    return f"{{{', '.join(str(order.index(letter)) for letter in 'bhsd')}}}"
