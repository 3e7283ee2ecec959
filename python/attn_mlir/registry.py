"""All passes and pipelines there are: the core's and those of the installed backends."""

from functools import cache, partial

from attn_mlir.backends import load_backends
from attn_mlir.passes.pipeline import Registry, core_registry


@cache
def registry() -> Registry:
    """The core's registry with what the backends' manifests add."""
    core = core_registry()
    passes, pipelines = dict(core.passes), dict(core.pipelines)
    for backend in load_backends().values():
        passes.update({name: partial(backend.load, target) for name, target in backend.passes.items()})
        pipelines.update(backend.pipelines)
    return Registry(passes, pipelines)
