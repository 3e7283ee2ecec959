"""Checks `tile.kernel`, which no verifier sees: it stands on an operation of another dialect, and passes rely on what it says."""

from attn_mlir.diagnostics import DiagnosticError, at
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

_POSITIVE = ("block_q", "block_kv", "blocks")
_GRIDS = ("rows", "pairs", "chunks")


def check_kernels(module: ir.Module) -> None:
    """Raises DiagnosticError for a function whose `tile.kernel` says what cannot be."""
    for function in find_all(module.operation, "func.func"):
        why = _wrong(function) if "tile.kernel" in function.attributes else ""
        if why:
            raise DiagnosticError([at(function.location, "error", f"`tile.kernel` of this function {why}")])


def _wrong(function: ir.Operation) -> str:
    """What is wrong with it, or ""."""
    if len(function.regions[0].blocks) != 1:
        return "is that of a kernel, which has a body of one block"
    given = function.attributes["tile.kernel"]
    if not isinstance(given, ir.DictAttr):
        return f"is a dictionary, got {given}"
    sizes = {name: given[name] for name in (*_POSITIVE, "segment", "over", "sequences") if name in given}
    odd = [name for name, value in sizes.items() if not isinstance(value, ir.IntegerAttr)]
    if odd:
        return f"has a number as `{odd[0]}`, got {sizes[odd[0]]}"
    numbers = {name: ir.IntegerAttr(value).value for name, value in sizes.items()}
    odd = [name for name in _POSITIVE if numbers.get(name, 1) < 1] + [name for name in ("segment",) if numbers.get(name, 0) < 0]
    if odd:
        return f"has a positive `{odd[0]}`, got {numbers[odd[0]]}"
    count = len(function.regions[0].blocks[0].arguments)
    odd = [name for name in ("over", "sequences") if name in numbers and not 0 <= numbers[name] < count]
    if odd:
        return f"names one of {count} arguments as `{odd[0]}`, got {numbers[odd[0]]}"
    return _wrong_words(given)


def _wrong_words(given: ir.DictAttr) -> str:
    """The same for what are no numbers."""
    grid = given["grid"] if "grid" in given else None
    if grid is not None and not (isinstance(grid, ir.StringAttr) and ir.StringAttr(grid).value in _GRIDS):
        return f"has a grid of {', '.join(_GRIDS)}, got {grid}"
    outputs = given["outputs"] if "outputs" in given else None
    if outputs is not None and not (isinstance(outputs, ir.ArrayAttr) and all(isinstance(each, ir.StringAttr) for each in outputs)):
        return f"has a list of words as `outputs`, got {outputs}"
    disjoint = given["disjoint"] if "disjoint" in given else None
    if disjoint is not None and not _lists_of_bools(disjoint):
        return f"has lists of true and false as `disjoint`, got {disjoint}"
    if "serial" in given and not isinstance(given["serial"], ir.BoolAttr):
        return f"says true or false as `serial`, got {given['serial']}"
    if "score" in given and not isinstance(given["score"], ir.TypeAttr):
        return f"has a type as `score`, got {given['score']}"
    return ""


def _lists_of_bools(value: ir.Attribute) -> bool:
    lists = list(ir.ArrayAttr(value)) if isinstance(value, ir.ArrayAttr) else [None]
    return all(isinstance(each, ir.ArrayAttr) and all(isinstance(b, ir.BoolAttr) for b in ir.ArrayAttr(each)) for each in lists)
