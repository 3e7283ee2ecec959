"""`compile_operators`: the attentions of an exported model as torch operators, for processes without Python."""

import importlib
import re
import sys
from pathlib import Path

import torch

from attn_mlir import driver
from attn_mlir.api.ahead import capture_of, refuse_outputs
from attn_mlir.backends.ahead.link import is_static
from attn_mlir.backends.ahead.request import LinearRequest, Request, check_file, path_of
from attn_mlir.backends.program import function_named
from attn_mlir.dialects import loaded
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.intervals.capture_bounds import make_plan
from attn_mlir.runtime import programs
from attn_mlir.runtime.linear import LinearProgram

_PROGRAM, _WRT = 6, 7
"""Arguments of the operator."""


def compile_operators(exported: torch.export.ExportedProgram, out: str | Path = "liboperators.so", compiler: str | None = None) -> Path:
    """Makes a shared library that registers `attn_mlir::forward` with torch for the attentions of a model, on the CPU; returns its path.

    exported: what `torch.export.export` made of the model, under `torch.no_grad()` or of one without gradients. A C++ program that loads
    the library before it runs the package that `torch._inductor.aoti_compile_and_package(exported)` made needs no Python and no attn-mlir.
    compiler: the command of the system's C++ compiler; None: $CXX, c++, g++ or clang++. It compiles against headers of this torch, through
    its stable ABI, of torch 2.10 and newer, for processors with the instruction sets of this machine.

    Raises ArgumentError for what is no exported program, or has no attention; UnsupportedError for graphs with gradients or dropout, and
    where a compiler is missing.
    """
    if not isinstance(exported, torch.export.ExportedProgram):
        raise ArgumentError(f"compile_operators takes what torch.export.export returns, got {type(exported).__name__}")
    path = path_of(out)
    if is_static(path):
        raise ArgumentError(f"{path.name} would be a static library, of which linkers drop what registers operators: end its name with .so")
    found = _programs(exported)
    requests = [(name, _request(programs.find(name), f"attention{number}")) for number, name in enumerate(found)]
    schema = importlib.import_module("attn_mlir.runtime.schemas").SCHEMAS["forward"]
    check_file(path)
    folders = tuple(str(Path(torch.__file__).parent / "include" / part) for part in ("", "torch/csrc/api/include"))
    version = sys.modules["attn_mlir"].__version__
    return driver.build_operators(requests, schema, "cpu", path, compiler, folders, version)


def _programs(exported: torch.export.ExportedProgram) -> list[str]:
    """The names of the programs that the graph asks for, each once."""
    names: dict[str, None] = {}
    for module in exported.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            target = str(node.target)
            if node.op != "call_function" or not target.startswith("attn_mlir."):
                continue
            if not target.startswith("attn_mlir.forward") or node.args[_WRT]:
                raise UnsupportedError(
                    "the graph computes what gradients need, and operators without Python compute none: export the model under "
                    "torch.no_grad(), with requires_grad_(False)"
                )
            names[node.args[_PROGRAM]] = None
    if not names:
        raise ArgumentError("the exported program calls no attention of attn-mlir")
    return list(names)


def _request(program: programs.Program, name: str) -> Request:
    """A library of a program that is known by its text alone."""
    refuse_outputs(program)
    with LOCK, loaded():
        module = ir.Module.parse(program.text)
        function = function_named(module, "attention")
        types = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs
        tensors = [ir.RankedTensorType(each) if isinstance(each, ir.RankedTensorType) else None for each in types]
        described = [None if each is None else (str(each.element_type), each.rank) for each in tensors]
        q, v = tensors[0], tensors[2]
        assert q is not None and v is not None
        element, head_dim, value_dim = str(q.element_type), q.shape[3], v.shape[3]
    captures = []
    for i, (kind, called) in enumerate(zip(program.kinds, program.names, strict=True)):
        if re.fullmatch(r"dropout_\w+", called) and kind != "tensor":
            raise UnsupportedError("attention with dropout is not compiled for processes without Python: export the model in eval mode")
        captures.append(capture_of(program, i, kind, *(described[3 + i] or ("", 0))))
    linear = None
    if isinstance(program, LinearProgram):
        linear = LinearRequest(tuple(program.inputs), 0 if "cu_seqlens" in program.inputs else program.segment or 0)
    plan = make_plan(program.text, program.names)
    return Request(
        name, program.text, "", element, head_dim, value_dim, "bhsd", tuple(captures), program.outputs, (), plan, linear=linear
    )  # fmt: skip
