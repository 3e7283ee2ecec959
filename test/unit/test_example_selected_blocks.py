"""The example of selected blocks: a learned selection, for a few steps."""

import importlib.util
from pathlib import Path


def test_training_lowers_the_loss() -> None:
    path = Path(__file__).parents[2] / "examples" / "selected_blocks.py"
    spec = importlib.util.spec_from_file_location("selected_blocks", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    losses = example.train(25)
    assert sum(losses[-3:]) / 3 < 0.95 * losses[0]
