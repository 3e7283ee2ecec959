"""What is computed outside of the graphs of torch.compile."""

from collections.abc import Callable
from typing import Any

import torch


@torch._dynamo.disable(reason="these exchanges are made outside of the graph: only ring_attention with strategy='ring' is an operator")
def outside(compute: Callable[[], Any]) -> Any:
    """What is computed, between two graphs."""
    return compute()
