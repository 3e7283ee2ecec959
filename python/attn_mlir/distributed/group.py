"""The process group of a mesh's dimension, and what its ranks tell each other before they exchange tensors."""

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from attn_mlir.errors import ArgumentError

_WORDS = 16
"""How many integers each exchange has, so that ranks which make different calls understand each other: the call, how many words, words."""
CALLS = ("ring_attention", "linear_attention", "decode_attention", "unshard", "seeds of ring_attention")
_REFUSED = len(CALLS)


@dataclasses.dataclass(frozen=True)
class Told:
    """What the ranks tell each other, on its way."""

    every: list[Tensor]
    work: Any

    def wait(self) -> list[list[int]]:
        """What each rank told. Raises ArgumentError, on all ranks, where one refused its arguments, or makes another call."""
        self.work.wait()
        every = torch.stack(self.every).tolist()
        calls = [each[0] for each in every]
        if _REFUSED in calls:
            raise ArgumentError(f"rank {calls.index(_REFUSED)} of the mesh's dimension refused the arguments of its call: see its error")
        if len(set(calls)) > 1:
            rank = next(r for r, call in enumerate(calls) if call != calls[0])
            raise ArgumentError(f"ranks of the mesh's dimension differ: rank 0 calls {CALLS[calls[0]]}, rank {rank} {CALLS[calls[rank]]}")
        return [each[2 : 2 + each[1]] for each in every]


@dataclasses.dataclass(frozen=True)
class Ranks:
    """The ranks along one dimension of a mesh."""

    group: Any
    rank: int
    count: int

    def all_gather(self, call: str, values: Sequence[int], device: torch.device) -> list[list[int]]:
        """The integers that each rank gives in one of `CALLS`, as many on each."""
        return self.told(call, values, device).wait()

    def told(self, call: str, values: Sequence[int], device: torch.device) -> "Told":
        """The same, on its way."""
        return self._told(CALLS.index(call), values, device)

    @contextlib.contextmanager
    def before_told(self, device: torch.device) -> Iterator[None]:
        """What a rank does before it tells anything: where that raises an error, the others hear of it instead, and raise one, too."""
        try:
            yield
        except Exception:
            self._told(_REFUSED, (), device).work.wait()
            raise

    def _told(self, call: int, values: Sequence[int], device: torch.device) -> "Told":
        words = [call, len(values), *values]
        own = torch.tensor([*words, *[0] * (_WORDS - len(words))], dtype=torch.int64, device=self.meeting_device(device))
        every = [torch.empty_like(own) for _ in range(self.count)]
        return Told(every, dist.all_gather(every, own, group=self.group, async_op=True))

    def meeting_device(self, device: torch.device) -> torch.device:
        """Where small tensors that all ranks tell each other lie: on the CPU, where the group has a backend for it."""
        kinds = {str(kind) for kind in getattr(self.group, "_device_types", [])}
        return torch.device("cpu") if "cpu" in kinds else device

    def all_summed(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in the order of the ranks, so that it has the same bits on all of them and in every run."""
        every = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(every, tensor.contiguous(), group=self.group)
        total = every[0]
        for other in every[1:]:
            total = total + other
        return total


def ranks_of(mesh: Any, dim: str | int | None) -> Ranks:
    """The ranks along a mesh's dimension, given by its name or number. Raises ArgumentError."""
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentError(f"mesh must be a torch.distributed.device_mesh.DeviceMesh, got {type(mesh).__name__}: see init_device_mesh")
    if dim is None:
        if mesh.ndim != 1:
            raise ArgumentError(
                f"the mesh has the dimensions {mesh.mesh_dim_names or mesh.ndim}: say by dim= along which the sequence is cut"
            )
        dim = 0
    names = mesh.mesh_dim_names or ()
    if isinstance(dim, str) and dim not in names:
        raise ArgumentError(f"the mesh has no dimension {dim!r}; it has {', '.join(map(repr, names)) or 'no names'}")
    if isinstance(dim, int) and not -mesh.ndim <= dim < mesh.ndim:
        raise ArgumentError(f"the mesh has {mesh.ndim} dimensions, got dim={dim}")
    number = names.index(dim) if isinstance(dim, str) else dim % mesh.ndim
    group = mesh.get_group(number)
    return Ranks(group, dist.get_rank(group), dist.get_world_size(group))


def digest(*values: Any) -> int:
    """A number that tells values with different `repr` apart."""
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=7).digest(), "big")


def agreed(every: Sequence[Sequence[int]], names: Sequence[str], shown: Sequence[str]) -> None:
    """Raises ArgumentError, on all ranks alike, where ranks gave different values for one of `names`, which come first in `every`.

    A name in `shown` has a value that says something; others are digests.
    """
    for place, name in enumerate(names):
        values = [each[place] for each in every]
        if len(set(values)) > 1:
            rank = next(r for r, value in enumerate(values) if value != values[0])
            told = (
                f": {values[0]} on rank 0, {values[rank]} on rank {rank}" if name in shown else f": rank {rank} has another one than rank 0"
            )
            raise ArgumentError(f"ranks of the mesh's dimension differ in {name}{told}")
