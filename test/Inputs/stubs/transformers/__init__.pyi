"""What a type checker reads in the place of the first module of transformers, which imports 2,500 others: a sixth of a check.

The others have their own types.
"""

from typing import Any

def __getattr__(name: str) -> Any: ...
