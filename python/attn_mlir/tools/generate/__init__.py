"""attn-generate: instances of kernels, their sources, and a project that builds them."""

from attn_mlir.tools.generate.instance import Instance as Instance
