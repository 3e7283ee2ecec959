"""`device="cuda-emulated"`: scheduled kernels for Hopper on tensors of the CPU, by the evaluator of the `warp` dialect.

`device="cuda-emulated-sm80"`: those for sm_80.
"""

EMULATED = "cuda-emulated"
CHIPS = {EMULATED: "sm_90a", f"{EMULATED}-sm80": "sm_80"}
"""The chip by the name of the device."""


def choices_of(device: str) -> dict[str, int | str]:
    """What is chosen for all kernels of a device: whole programs, as kernels of the `warp` dialect have no memory for sums of `pieces`."""
    arch = CHIPS[device]
    return {"arch": arch, "pieces": 0} if device == EMULATED else {"arch": arch, "emitter": "warp"}
