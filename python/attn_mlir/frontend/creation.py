"""Numbers that a traced value makes, as `new_ones`, `new_zeros`, `new_full`, `new_empty` and `new_tensor` of a tensor; and `aten.index`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attn_mlir.frontend import scope
from attn_mlir.frontend.links import LINKS
from attn_mlir.frontend.values import Value, value


def _number(name: str, x: Any, size: tuple[Any, ...], number: Any, dtype: Any) -> Value:
    """`number`, in `dtype` or that of the traced value `x`; `size` may say no more than that it is one number."""
    flat = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    if any(int(length) != 1 for length in flat):
        raise scope.fail(f".{name}({', '.join(map(str, flat))}) makes a tensor of several numbers", f"write .{name}(()) for one number")
    made = value(number)
    return made.to(value(x).dtype if dtype is None else dtype)


def _filled(name: str, number: int) -> Callable[..., Value]:
    def function(x: Any, *size: Any, dtype: Any = None, **options: Any) -> Value:
        return _number(name, x, (options["size"],) if "size" in options else size, number, dtype)

    return function


def _full(x: Any, size: Any, fill_value: Any, dtype: Any = None, **_: Any) -> Value:
    return _number("new_full", x, (size,), fill_value, dtype)


def _tensor(x: Any, data: Any, dtype: Any = None, **_: Any) -> Value:
    """Unlike the others, of the data's own dtype, as in torch."""
    if isinstance(data, (tuple, list)) and len(data) != 1:
        raise scope.fail(".new_tensor(...) of several numbers", "make the table outside of the function and index it")
    number = data[0] if isinstance(data, (tuple, list)) else data
    made = value(number)
    return made if dtype is None and isinstance(number, (Value, torch.Tensor)) else made.to(value(x).dtype if dtype is None else dtype)


def _index(x: Any, indices: Any) -> Any:
    """`torch.ops.aten.index`, which is `x[indices]` of a captured tensor."""
    return (LINKS.capture(x) if isinstance(x, torch.Tensor) else x)[tuple(indices)]


METHODS: Mapping[str, Callable[..., Any]] = {
    "new_ones": _filled("new_ones", 1),
    "new_zeros": _filled("new_zeros", 0),
    "new_empty": _filled("new_empty", 0),
    "new_full": _full,
    "new_tensor": _tensor,
    "index": _index,
}
