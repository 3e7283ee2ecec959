"""Calls of libraries for NVIDIA GPUs on a libcuda that runs nothing, and what the Python driver tells a fake one for the same tensors.

For a process of its own, in which `load` loads that libcuda under the name of the real one.
"""

import ctypes
import json
import struct
from pathlib import Path
from typing import Any

import torch

from ahead_calls import OnDevice
from attn_mlir.api.ahead import requests_of
from attn_mlir.backends.nvidia import driver, launch
from nvidia_fakes import BINARY, FakeCuda, fake_gpu

_FORMATS = {"int": "<i", "unsigned": "<I", "long long": "<q", "float": "<f", "double": "<d"}
_ELEMENTWISE = {"attn_copy": (112, 112, 64), "attn_add": (112, 112, 112, 64), "attn_fold": (112, 112, 64, 8, 8), "attn_fill": (112, 64, 8)}
_FAKE: list[ctypes.CDLL] = []


def load(path: Path) -> None:
    """Loads the libcuda at `path`, whose soname is that of the real one."""
    fake = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    fake.fake_log.restype = ctypes.c_char_p
    for which, value in ((16, 132), (97, 227 * 1024), (75, 9), (76, 0)):
        fake.fake_attribute(which, value)
    for name, sizes in _ELEMENTWISE.items():
        fake.fake_layout(name.encode(), len(sizes), (ctypes.c_int * len(sizes))(*sizes))
    _FAKE[:] = [fake]


def fake() -> Any:
    return _FAKE[0]


def log() -> list[dict[str, Any]]:
    """The calls since the last one of this function."""
    lines = fake().fake_log().decode().splitlines()
    fake().fake_reset()
    return [json.loads(line) for line in lines]


class OnCuda(OnDevice):
    """A library on CUDA devices."""

    device_type = 2


on_cuda = OnCuda.told


class _Recorded(FakeCuda):
    """Descriptors are numbered, and the bytes of parameters kept when a kernel is launched; `sizes` are theirs, by the kernel launched."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.launches = [], []  # type: ignore[var-annotated]
        self.entries: dict[int, str] = {}
        self.sizes: dict[str, list[int]] = {}

    def answer(self, name: str, args: tuple[Any, ...]) -> Any:
        made = super().answer(name, args)
        if name == "cuModuleGetFunction":
            self.entries[args[0]._obj.value] = args[2].decode()
        if name == "cuTensorMapEncodeTiled":
            ctypes.memset(args[0].value, 0, 128)
            ctypes.c_int.from_address(args[0].value).value = len(self.maps)
            self.maps.append(made)
        if name == "cuLaunchKernelEx":
            entry = self.entries[made["function"]]
            sizes = self.sizes[entry]
            pointers = (ctypes.c_void_p * len(sizes)).from_address(made["parameters"])
            values = [ctypes.string_at(at, size).hex() for at, size in zip(pointers, sizes, strict=True)]  # type: ignore[arg-type]
            self.launches.append({**made, "name": entry, "grid": list(made["grid"]), "parameters": values})
        return made


def know(attention: Any, spec: Any, name: str) -> None:
    """Tells the fake what parameters the kernels of a forward pass have, whatever other kernels of the same name have."""
    request, _ = requests_of(attention, spec, None, name, backward=False, wrt=None, deterministic=False)
    with fake_gpu():
        _tell_sizes(_sizes(driver.compile_program(request.text, "attention")))


def _sizes(program: Any) -> dict[str, list[int]]:
    return {unit.code.entry: [_size(p) for p in unit.code.parameters] for unit in program.units.values()}


def _tell_sizes(found: dict[str, list[int]]) -> None:
    for entry, sizes in found.items():
        fake().fake_layout(entry.encode(), len(sizes), (ctypes.c_int * len(sizes))(*sizes))


def _size(parameter: Any) -> int:
    if parameter.kind in ("descriptor", "window"):
        return 128
    return 8 if parameter.kind in ("pointer", "counter") else struct.calcsize(_FORMATS[parameter.type])


def _told(launch: dict[str, Any], parameters: Any, maps: list[dict[str, Any]], named: Any) -> dict[str, Any]:
    """A launch with numbers for what it is told, and names for addresses."""
    values: list[Any] = []
    for parameter, text in zip(parameters, launch["parameters"], strict=True):
        data = bytes.fromhex(text)
        if parameter.kind == "window" and not any(data):
            values.append("no window")
        elif parameter.kind in ("descriptor", "window"):
            found = maps[struct.unpack_from("<i", data)[0]]
            kept = {name: found[name] for name in ("type", "dims", "box", "swizzle")}
            # A dimension of one element may have any stride.
            strides = [0 if size == 1 else stride for size, stride in zip(found["dims"][1:], found["strides"], strict=True)]
            values.append({**kept, "strides": strides, "tensor": named(found["address"])})
        elif parameter.kind in ("pointer", "counter"):
            values.append(named(struct.unpack("<Q", data)[0]))
        else:
            values.append(struct.unpack(_FORMATS[parameter.type], data)[0])
    return {**{name: launch[name] for name in ("name", "grid", "threads", "shared", "cluster")}, "parameters": values}


def _namer(tensors: dict[str, torch.Tensor]) -> Any:
    """Names for addresses: those of the tensors they lie in, else "memory"."""
    ranges = [(t.data_ptr(), t.data_ptr() + max(1, t.untyped_storage().nbytes()), name) for name, t in tensors.items() if t.numel()]
    return lambda address: next((name for begin, end, name in ranges if begin <= address < end), "memory")


def both(
    library: Path, name: str, attention: Any, spec: Any, inputs: list[Any], deterministic: bool = False, backward: bool = True
) -> dict[str, tuple[list[Any], list[Any]]]:
    """The launches of each function by the library and by Python, on the same q, k, v and captures, which are in the library's order."""
    request, _ = requests_of(attention, spec, None, name, backward=backward, wrt=None, deterministic=False)
    segment = request.linear.segment if request.linear else 0
    segment = segment if segment < inputs[2].shape[2] else 0
    wrt = [request.argument(i) for i in request.wrt]
    made: dict[str, tuple[list[Any], list[Any]]] = {}
    with fake_gpu() as quiet:
        recorded = _Recorded()
        quiet.__dict__["answer"] = recorded.answer
        driver._PROGRAMS.clear()
        launch._MAPS.clear()
        rows = len(request.outputs)
        programs: dict[str, Any] = {"forward": driver.compile_program(request.text, "attention", deterministic=deterministic)}
        for function, derivative in (("training_forward", "fwd"), ("backward", "bwd")) if backward else ():
            programs[function] = driver.compile_derivative(request.text, derivative, wrt, deterministic)
        if request.linear:
            del programs["training_forward"]
            programs["forward"] = driver.compile_derivative(request.text, "", [], deterministic, segment)
            programs["backward"] = driver.compile_derivative(request.text, "bwd", wrt, deterministic, segment)
        expected: dict[str, list[Any]] = {}
        results, grads = [], []  # type: ignore[var-annotated]
        given = list(inputs)
        for function, program in programs.items():
            program.beside = None
            program = program.for_keys(inputs[1].shape[2])
            program._binaries = dict.fromkeys(program.units, BINARY)
            parameters = {unit.code.entry: unit.code.parameters for unit in program.units.values()}
            recorded.sizes = _sizes(program)
            recorded.launches, recorded.maps = [], []
            launch._MAPS.clear()
            program._calls.clear()
            program._last_use = [[] for _ in program.host.steps]  # memory keeps one name, as nothing is freed and taken again
            if function == "backward":
                grads = [torch.randn_like(result) for result in results[: 1 + rows]]
                given = [*inputs, *(grads if request.linear else results), *grads]
            found = program.run(given)
            tensors = dict(zip(request.names, inputs, strict=True))
            if function == "backward":
                tensors |= {"o": results[0], "saved": results[-1], **{f"row{i}": results[1 + i] for i in range(rows)}}
                tensors |= {f"saved{i}": each for i, each in enumerate(results[1 + rows :])}
                tensors |= {f"d_{'o' if i == 0 else i}": each for i, each in enumerate(grads)}
                tensors |= {
                    f"grad{i}": each
                    for i, (each, position) in enumerate(zip(found, request.wrt, strict=True))
                    if each.dtype == inputs[position].dtype
                }
            else:
                results = found
                tensors |= {"o": found[0], **{f"row{i}": found[1 + i] for i in range(rows)}}
                tensors |= {f"saved{i}": each for i, each in enumerate(found[1 + rows :])}
            named = _namer({n: t for n, t in tensors.items() if isinstance(t, torch.Tensor)})
            expected[function] = [
                _told(each, parameters[each["name"]], recorded.maps, lambda address, named=named: _plain(named(address)))
                for each in recorded.launches
            ]
            made[function] = ([], expected[function])
            _tell_sizes(recorded.sizes)
            log()
            mine = _by_library(OnCuda(library, name), function, request, inputs, found if function != "backward" else None, given)
            made[function] = (
                [
                    _told(each, parameters[each["name"]], mine["maps"], mine["named"])
                    for each in mine["launches"]
                    if each["name"] not in _ELEMENTWISE
                ],
                expected[function],
            )
    return made


def _plain(name: str) -> str:
    return "saved" if name.startswith("saved") else name


def _by_library(library: OnCuda, function: str, request: Any, inputs: list[Any], found: Any, given: list[Any]) -> dict[str, Any]:
    rows = len(request.outputs)
    sizes = library.sizes_of(*inputs)
    tensors = {n: t for n, t in zip(request.names, inputs, strict=True) if isinstance(t, torch.Tensor)}
    saved = torch.zeros(sizes.saved, dtype=torch.uint8)
    keep = library.pointer(saved)
    if function == "backward":
        count = len(inputs)
        results, grads = given[count : count + 1 + rows], given[-1 - rows :]
        made = [torch.zeros_like(inputs[position]) for position in request.wrt]
        tensors |= {} if request.linear else {"o": results[0], **{f"row{i}": results[1 + i] for i in range(rows)}}
        tensors |= {f"d_{'o' if i == 0 else i}": each for i, each in enumerate(grads)} | {f"grad{i}": each for i, each in enumerate(made)}
        kept = [] if request.linear else [*results, *keep]
        arguments, bytes_ = [*inputs, *kept, *grads, *made], sizes.backward_workspace
    else:
        results = [torch.zeros_like(each) for each in found[: 1 + rows]]
        tensors |= {"o": results[0], **{f"row{i}": results[1 + i] for i in range(rows)}}
        arguments = [*inputs, *results, *(keep if function == "training_forward" else [])]
        bytes_ = sizes.training_workspace if function == "training_forward" else sizes.forward_workspace
    tensors["saved"] = saved
    memory = torch.zeros(max(1, bytes_), dtype=torch.uint8)
    library.call(function, arguments, workspace=memory)
    calls = log()
    assert fake().fake_depth() == 0
    return {
        "launches": [each for each in calls if each["call"] == "launch"], "maps": [each for each in calls if each["call"] == "map"],
        "named": _namer(tensors),
    }  # fmt: skip
