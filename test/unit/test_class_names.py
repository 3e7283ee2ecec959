"""One name, one thing: no two public classes of the product share a name."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SAME = {
    "BlockMask": "PyTorch's name for both: what `create_block_mask` gives, with tables in `flex`, without any in `api`",
}
"""Names that two classes have, and why."""


def _classes() -> dict[str, list[str]]:
    found = defaultdict(list)
    for folder in ("python/attn_mlir", "passes", "dialects", "backends"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if any(part.is_symlink() for part in path.parents):
                continue
            for node in ast.parse(path.read_text()).body:
                # Ops are named by their dialect: `tile.load` and `warp.load` are both `LoadOp`.
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not node.name.endswith("Op"):
                    found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_no_two_classes_share_a_name() -> None:
    shared = {name: paths for name, paths in _classes().items() if len(paths) > 1}
    assert not {name: paths for name, paths in shared.items() if name not in _SAME}
    assert set(_SAME) <= set(shared), "names that are no longer shared"
