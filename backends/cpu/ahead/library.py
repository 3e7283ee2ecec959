"""The table `attn::Library` of a library: what its calls check, and which kernels and programs they run."""

import json

from attn_mlir.backends.ahead import Request
from attn_mlir.backends.cpu import pipeline
from attn_mlir.backends.cpu.ahead.bounds import check_reads
from attn_mlir.backends.cpu.ahead.tables import element
from attn_mlir.backends.cpu.target import instruction_sets

_KINDS = {"tensor": "TENSOR", "float": "REAL", "int": "INTEGER", "drop": "DROP", "keep": "KEEP_SCALE"}


def library_table(request: Request, scalars: tuple[str, ...]) -> str:
    """The table; `scalars` are the kinds that the kernel's signature has for what is captured."""
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
            _lacking(),
            "static const attn::Argument arguments[] = {",
            *[f"    {{{each}}}," for each in arguments],
            "};",
            f"static const char *const rows[] = {{{', '.join(rows) or 'nullptr'}}};",
            f"static const int gradients[] = {{{', '.join(map(str, request.wrt)) or '0'}}};",
            f"static const attn::Extent extents[] = {{{', '.join(extents) or '{}'}}};",
            f'static const attn::Library library = {{"{request.name}", {elements}, {len(arguments)}, arguments, '
            f"{_places(request.layout[:4])}, {_places(request.layout[-4:])}, {len(rows)}, rows, &usual, &few, &one, &group, "
            f"{pipeline.FEW_ROWS[0]}, {training}, {len(request.wrt)}, gradients, {len(extents)}, extents, check_reads, lacking}};",
        ]
    )


def _inputs(request: Request) -> tuple[tuple[str, int], ...]:
    return ("q", request.head_dim), ("k", request.head_dim), ("v", request.value_dim)


def _argument(name: str, of: str, rank: int, columns: int, kind: str = "TENSOR", nonzero: bool = False) -> str:
    shape = ["-1"] * (rank - 1) + [str(columns)] if rank else ["0"]
    return f'"{name}", attn::{kind}, {element(of)}, {rank}, {{{", ".join(shape)}}}, {str(nonzero).lower()}'


def _places(order: str) -> str:
    return f"{{{', '.join(str(order.index(letter)) for letter in 'bhsd')}}}"


def _lacking() -> str:
    """Code is for the instruction sets of this machine: others are asked before any of it runs."""
    lines = [f'  if (!__builtin_cpu_supports("{name}")) return "{name}";' for name in instruction_sets()]
    return "\n".join(["static const char *lacking() {", *lines, "  return nullptr;", "}"])
