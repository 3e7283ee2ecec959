"""A registration of `attn_mlir::forward` with torch, in C++: the functions of libraries by the texts of their programs."""

import json
from collections.abc import Sequence
from pathlib import Path

from attn_mlir.backends.ahead.header import header
from attn_mlir.backends.ahead.request import Request, results

FLAGS = ("-DTORCH_TARGET_VERSION=0x020a000000000000",)
"""Of torch, the oldest release whose stable ABI takes lists and strings: 2.10."""
_PIECE = 8000
"""Characters of a string literal, of which compilers take a limited number."""
_LISTS = {"tensor": "&tensors", "float": "floats", "int": "ints"}
"""The array of C++ that holds captures of a kind."""


def registration(programs: Sequence[tuple[str, Request]], schema: str, target: str, version: str) -> str:
    """The C++ file; `programs` are the texts that name them in graphs, with the requests of their libraries."""
    headers = [header(request, target, version) for _, request in programs]
    runs = [_run(number, request) for number, (_, request) in enumerate(programs)]
    operators = [_operator(number, program, request) for number, (program, request) in enumerate(programs)]
    arguments = (
        "torch::stable::Tensor q, torch::stable::Tensor k, torch::stable::Tensor v, std::vector<torch::stable::Tensor> captures, "
        "std::optional<std::vector<double>> floats, std::optional<std::vector<int64_t>> ints, std::string program, std::string wrt, "
        "std::string layout"
    )
    given = "q, k, v, captures, floats.value_or(std::vector<double>()), ints.value_or(std::vector<int64_t>()), program, wrt, layout"
    return "\n".join(
        [
            "#define ATTN_MLIR_OWN_DLPACK",
            *headers,
            (Path(__file__).parent / "attn_torch.h").read_text(encoding="utf-8"),
            *runs,
            f"static const attn_torch::Operator operators[] = {{{', '.join(operators)}}};",
            f"static std::vector<torch::stable::Tensor> forward({arguments}) {{",
            f"  return attn_torch::forward(operators, {len(programs)}, {given});",
            "}",
            f"STABLE_TORCH_LIBRARY(attn_mlir, m) {{ m.def({json.dumps('forward' + schema)}); }}",
            'STABLE_TORCH_LIBRARY_IMPL(attn_mlir, CPU, m) { m.impl("forward", TORCH_BOX(&forward)); }',
        ]
    )


def _run(number: int, request: Request) -> str:
    places, arguments = dict.fromkeys(_LISTS, 0), []
    for capture in request.captures:
        arguments.append(f"{_LISTS[capture.kind]}[{places[capture.kind]}]")
        places[capture.kind] += 1
    made = [f"&results[{i}]" for i in range(len(results(request)))]
    head = (
        f"static int32_t run_{number}(const DLTensor *q, const DLTensor *k, const DLTensor *v, const DLTensor *tensors, "
        "const double *floats, const int64_t *ints, DLTensor *results) {"
    )
    given = ", ".join(["q", "k", "v", *arguments, *made, "nullptr, 0, nullptr, 0"])
    return "\n".join([head, "  (void)tensors, (void)floats, (void)ints;", f"  return {request.name}_forward({given});", "}"])


def _operator(number: int, program: str, request: Request) -> str:
    counts = [sum(capture.kind == kind for capture in request.captures) for kind in _LISTS]
    linear = request.linear
    sequences = -1 if linear is None or "cu_seqlens" not in linear.inputs else linear.inputs.index("cu_seqlens")
    text = "\n".join([json.dumps(program[i : i + _PIECE]) for i in range(0, len(program), _PIECE)])
    fields = f"{', '.join(map(str, counts))}, {len(request.outputs)}, {str(linear is not None).lower()}, {sequences}"
    return f"{{{text}, run_{number}, {request.name}_last_error, {fields}}}"
