"""The example that trains a model of transformers, over the processes of `ranks`."""

import runpy
from pathlib import Path

from torch.distributed.device_mesh import DeviceMesh

_EXAMPLE = Path(__file__).parents[2] / "examples/context_parallel_training.py"


def losses(mesh: DeviceMesh) -> tuple[list[float], list[float]]:
    """The losses of steps on two processes, and on the first one alone."""
    train = runpy.run_path(str(_EXAMPLE))["train"]
    return train(mesh), train(None) if mesh.get_local_rank() == 0 else []
