"""No function of the product takes more than seven positional arguments, but for signatures that are given."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 7
_PUBLIC = (
    "python/attn_mlir/api/attention.py", "python/attn_mlir/api/block_mask.py", "python/attn_mlir/api/delta_rules.py",
    "python/attn_mlir/api/engine.py", "python/attn_mlir/api/linear.py", "python/attn_mlir/api/linear_engine.py",
    "python/attn_mlir/api/recurrences.py",
)  # fmt: skip
"""What users call: most of these arguments have defaults, and are passed by name. AttentionEngine and FLA have them in this order."""
_OF_OTHERS = (
    "python/attn_mlir/flex/attention.py", "python/attn_mlir/flex/create.py", "python/attn_mlir/integrations/model_scans.py",
    "python/attn_mlir/integrations/torch_context_parallel.py", "python/attn_mlir/integrations/transformers.py",
    "python/attn_mlir/integrations/vllm.py", "python/attn_mlir/api/online_func.py", "python/attn_mlir/api/online_rows.py",
)  # fmt: skip
"""Functions that PyTorch, transformers, vLLM or an engine calls, or whose calls are those of torch's function of this name."""
_OF_OPERATORS = ("python/attn_mlir/api/graphs.py",)
"""torch makes the schema of an operator from its parameters."""
_OF_OPS = (
    "backends/nvidia/warp/copies.py", "backends/nvidia/warp/rows.py", "python/attn_mlir/reference/warp/memory.py",
    "python/attn_mlir/philox.py",
)  # fmt: skip
"""Rules of a table of ops: the parameters are the op's operands."""
GIVEN = {*_PUBLIC, *_OF_OTHERS, *_OF_OPERATORS, *_OF_OPS}


def _long(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            if len(names) - (names[:1] in (["self"], ["cls"])) > MOST:
                yield f"{node.name} (line {node.lineno})"


def test_functions_take_at_most_seven_positional_arguments() -> None:
    found: dict[str, list[str]] = {}
    for folder in ("python/attn_mlir", "passes", "dialects", "backends"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(part.is_symlink() for part in path.parents) and (names := [*_long(path.read_text())]):
                found[str(path.relative_to(ROOT))] = names
    assert {path: names for path, names in found.items() if path not in GIVEN} == {}
    assert set(found) >= GIVEN, "files that need no exception any more"


def test_long_signatures_are_found() -> None:
    parameters = ", ".join(f"x{number}" for number in range(8))
    assert [*_long(f"class C:\n    def f(self, {parameters}): ...\n")] == ["f (line 2)"]
    assert [*_long("class C:\n    def f(self, a, b, c, d, e, f, g, *, h): ...\n")] == []
