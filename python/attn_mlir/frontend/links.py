"""Functions that objects of a trace call and that are written in terms of these objects: `torch_functions` puts them here.

Methods and torch functions of traced values are made of traced values. So the classes ask here, and import none of the modules that
build on them.
"""

from collections.abc import Callable
from typing import Any


class Links:
    """The functions, by what they are for; they are there once `attn_mlir.frontend` is imported."""

    torch: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
    """A torch function of traced objects, with its arguments."""
    attribute: Callable[[Any, str], Any]
    """A method of a traced value, by torch's name; or an error that says what there is."""
    call: Callable[..., Any]
    """The function that a library ("torch", "numpy") knows by a name, of these arguments."""
    lift: Callable[[Any], Any]
    """The node of a captured tensor of rank 0, or of a number of numpy's."""
    capture: Callable[[Any], Any]
    """A tensor in its traced form."""
    vector: Callable[[Any], Any]
    """An array of traced values."""
    sliced: Callable[[Any, tuple[Any, ...]], Any]
    """A captured tensor, of which an index leaves some dimensions whole."""
    is_array: Callable[[Any], bool]
    """Whether an object has dimensions."""


LINKS = Links()
