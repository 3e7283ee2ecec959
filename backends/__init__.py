"""Backends: vertical slices that take scheduled tile IR to code that runs. Core code never names one of them."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any

GROUP = "attn_mlir.backends"
_NONE = ("ahead", "tuning")
"""Packages here that are no backends: what several share."""


@dataclass(frozen=True)
class Backend:
    """What a backend declares about itself; `BACKEND` in its package.

    `device_types` are the torch device types (and names given as `device=`) that it serves. `passes` maps pass names, and
    `translations` the formats of `attn-translate`, to "module:attribute" inside the package; a translation takes an `ir.Module` and
    returns text or bytes. `pipelines` are named textual pipelines. `schedule` (a function that annotates one kernel), `compile` (from
    IR text to a `driver.Kernel`), `derive` (from IR text, the derivative's name and its arguments to a `driver.CompiledFunction`),
    `tune` (a `tuning.program.Tuner`), `slow` (see `driver.slow_kernels`), `describe` (from the fields of an `Arch` to the facts of a
    target), `see` (from the text of a module with locations, a derivative's name, its arguments and whether kernels are compiled for
    what that tells, to what a report shows, a `seen.Seen`), `ahead` (from an `ahead.Request` to a library, see `driver.build_library`),
    `ahead_with` (a function that says what its libraries are for and made with here; it raises UnsupportedError where they cannot be
    made), `ahead_sources` and `ahead_project` (see `driver.kernel_sources` and `driver.library_project`), `operators` (see
    `driver.build_operators`) and `doctor` (a function that gives `attn_mlir.findings.Finding`s about the machine) are references of the
    same form; `targets` are the names under which it makes code ahead of time. `packed` and `paged`: it takes the packed tensors of
    `attn.sequences`, in `compile` and `derive`, and keys in pages, `attn.pages`; `lists` refers to what makes lists of keys ready on
    the device, see `driver.list_maker`, and `offsets` to what does that with offsets, see `driver.offset_maker`. `tensors` maps those
    of `device_types` that torch has no tensors on to the torch device type of the tensors they take. `compile`, `derive` and `see` of a
    backend that has any also take `device`, one of `device_types`.
    """

    name: str
    package: str
    device_types: tuple[str, ...]
    passes: Mapping[str, str] = field(default_factory=dict)
    pipelines: Mapping[str, str] = field(default_factory=dict)
    translations: Mapping[str, str] = field(default_factory=dict)
    schedule: str | None = None
    compile: str | None = None
    derive: str | None = None
    tune: str | None = None
    slow: str | None = None
    describe: str | None = None
    see: str | None = None
    targets: tuple[str, ...] = ()
    ahead: str | None = None
    ahead_with: str | None = None
    ahead_sources: str | None = None
    ahead_project: str | None = None
    operators: str | None = None
    doctor: str | None = None
    packed: bool = False
    paged: bool = False
    lists: str | None = None
    offsets: str | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)

    def load(self, reference: str) -> Any:
        """Imports "module:attribute" from the backend's package."""
        module, _, attribute = reference.partition(":")
        return getattr(importlib.import_module(f"{self.package}.{module}"), attribute)

    def compiler(self, device: str) -> Callable[..., Any] | None:
        """The driver's compile function for one of its devices, or None when the backend cannot run kernels yet."""
        return None if self.compile is None else self._for_device(self.compile, device)

    def deriver(self, device: str) -> Callable[..., Any] | None:
        """The driver's function for derivatives, or None when the backend has none yet."""
        return None if self.derive is None else self._for_device(self.derive, device)

    def seer(self, device: str) -> Callable[..., Any] | None:
        """The backend's function that tells what a report shows, or None when it has none."""
        return None if self.see is None else self._for_device(self.see, device)

    def _for_device(self, reference: str, device: str) -> Callable[..., Any]:
        function = self.load(reference)
        return partial(function, device=device) if self.tensors else function

    def tuner(self) -> Any:
        """The `tuning.program.Tuner` that ranks and measures schedules, or None when the backend has none."""
        return None if self.tune is None else self.load(self.tune)


@cache
def load_backends() -> dict[str, Backend]:
    """All backends: those in this package, and those that other distributions register as entry points."""
    modules = {info.name: f"{__name__}.{info.name}" for info in pkgutil.iter_modules(__path__) if info.ispkg and info.name not in _NONE}
    modules.update({point.name: point.value for point in entry_points(group=GROUP) if point.name not in modules})
    backends = {}
    for path in modules.values():
        backend = importlib.import_module(path).BACKEND
        backends[backend.name] = backend
    return backends


def backend_for(device: str) -> Backend | None:
    """The backend that serves `device` ("cpu", "cuda", ...), or None. PyTorch for ROCm calls AMD GPUs "cuda"."""
    device = "hip" if device == "cuda" and _is_rocm() else device
    return next((b for b in load_backends().values() if device in b.device_types), None)


def tensors_of(device: str) -> str:
    """The torch device type of the tensors that `device` takes: its own name, unless a backend says otherwise."""
    backend = backend_for(device)
    return device if backend is None else backend.tensors.get(device, device)


def devices_with(tensors: str) -> list[str]:
    """The devices that take tensors on a torch device type."""
    return [device for backend in load_backends().values() for device in backend.device_types if tensors_of(device) == tensors]


def _is_rocm() -> bool:
    torch = importlib.import_module("torch")
    return torch.version.hip is not None
