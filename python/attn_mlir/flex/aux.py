"""What flex_attention takes and returns beside tensors: torch's own classes, or for a torch before 2.9, which lacks them, the same."""

from typing import NamedTuple

from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex


class AuxRequest(NamedTuple):
    """Which further results to return."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """The further results; None what was not asked for."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


AuxRequest = getattr(torch_flex, "AuxRequest", AuxRequest)  # type: ignore[misc]
AuxOutput = getattr(torch_flex, "AuxOutput", AuxOutput)  # type: ignore[misc]
FlexKernelOptions = getattr(torch_flex, "FlexKernelOptions", dict)
