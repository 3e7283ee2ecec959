"""Object files of the modules that the JIT compiles, with names that are unique in a library."""

import tempfile
from pathlib import Path

from attn_mlir.backends.cpu.engine import compile_module
from attn_mlir.backends.cpu.target import check_object
from attn_mlir.mlir import ir


def object_code(module: ir.Module, prefix: str) -> bytes:
    """The code of a module in the LLVM dialect, whose functions get the prefix in their names. The module is changed."""
    check_object()
    for view in list(module.body.operations):
        function = view.operation
        if function.name == "llvm.func" and len(function.regions[0].blocks):
            name = ir.StringAttr(function.attributes["sym_name"]).value
            ir.SymbolTable.replace_all_symbol_uses(name, prefix + name, module.operation)
            ir.SymbolTable.set_symbol_name(function, prefix + name)
    # The pipeline of the JIT, but for addresses, which the dynamic linker finds.
    engine = compile_module(module, pic=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.o"
        engine.dump_to_object_file(str(path))
        return path.read_bytes()
