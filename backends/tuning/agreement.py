"""Whether two schedules of a kernel compute the same, up to rounding."""

from collections.abc import Sequence

import torch


def agree(results: Sequence[torch.Tensor], reference: Sequence[torch.Tensor], tolerance: float) -> bool:
    """Whether results have the shapes of the reference, are infinite where it is, and differ by `tolerance` of its norm at most."""
    return all(_close(made, wanted, tolerance) for made, wanted in zip(results, reference, strict=True))


def _close(made: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> bool:
    if made.shape != wanted.shape:
        return False
    kind = torch.float64 if wanted.dtype == torch.float64 else torch.float32
    made, wanted = made.to(kind), wanted.to(kind)
    finite = torch.isfinite(wanted)
    odd = [torch.nan_to_num(each[~finite], nan=0.0, posinf=1.0, neginf=-1.0) for each in (made, wanted)]
    if not torch.equal(*odd) or not bool(torch.isfinite(made[finite]).all()):
        return False
    difference, size = (made - wanted)[finite], wanted[finite]
    return bool(difference.norm() <= tolerance * size.norm() + 1e-6)
