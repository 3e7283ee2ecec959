"""Instances of the tests of attn-generate: those of the example, and what its program does not call."""

import importlib.util
from pathlib import Path

from attn_mlir.tools.generate import Instance

_found = importlib.util.spec_from_file_location("example_instances", Path(__file__).parents[2] / "examples/generate/instances.py")
assert _found is not None and _found.loader is not None
_example = importlib.util.module_from_spec(_found)
_found.loader.exec_module(_example)

instances = [
    *_example.instances,
    Instance("fwd", "fp32", 16, mask="t:1,1,1", layout="bshd", soft_cap=True, dropout=True),
    Instance("bwd", "fp32", 16, mask="b:1,0", bias="e:1", bias_gradient=True, lse=True),
]
