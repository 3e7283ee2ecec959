"""Functions take at most seven positional arguments, but for those whose signatures are other projects'."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOREIGN = {
    "api/block_mask.py": {"create_block_mask"},  # FlexAttention's, as AttentionEngine takes it
    "api/delta_rules.py": {"delta_rule", "gated_delta_rule", "kda"},  # flash-linear-attention's
    "api/engine.py": {"__init__"},  # AttentionEngine's
    "api/linear_engine.py": {"__init__"},
    "api/online_func.py": {"backward"},
    "api/online_rows.py": {"backward"},
    "api/recurrences.py": {"gla", "lightning", "mamba2", "retention_linear", "simple_gla"},  # flash-linear-attention's and mamba_ssm's
    "flex/attention.py": {"flex_attention"},  # torch's
    "flex/create.py": {"create_block_mask"},
    "integrations/model_scans.py": {"attn_mlir_scan"},  # mamba_ssm's
    "integrations/vllm.py": {"__init__", "forward"},  # vLLM's
}


def _positional(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _many(source: str) -> set[str]:
    """The functions of a file that take more than seven."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {function.name for function in functions if _positional(function) > 7}


def test_who_takes_more_than_seven() -> None:
    found: dict[str, set[str]] = {}
    for folder in ("dialects", "passes", "backends", "python/attn_mlir"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            place = str(path.relative_to(ROOT / folder))
            if folder == "python/attn_mlir" and place.startswith(("dialects/", "passes/", "backends/")):
                continue  # links to the other folders
            if many := _many(path.read_text()):
                found[place if folder == "python/attn_mlir" else f"{folder}/{place}"] = many
    assert found == FOREIGN


def test_long_signatures_are_found() -> None:
    parameters = ", ".join(f"x{number}" for number in range(8))
    assert _many(f"class C:\n    def f(self, {parameters}): ...\n") == {"f"}
    assert _many("class C:\n    def f(self, a, b, c, d, e, f, g, *, h): ...\n") == set()
