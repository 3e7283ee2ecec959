"""Training a model of transformers on sequences that are cut over two processes: the same losses as on one.

    python examples/context_parallel_training.py

Each process has a zigzag half of every sequence, with the positions of its tokens; attention is a ring, with an ALiBi of one's own
beside what the model asks for. Gradients of parameters are summed over the processes, as data-parallel training does.
"""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM

from attn_mlir import attention, masks
from attn_mlir.distributed import ring_attention, shard

LENGTH, STEPS, RANKS = 96, 3, 2
SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + SLOPES[h] * (kv_idx - q_idx)


def register(mesh: DeviceMesh | None) -> str:
    """Registers the attention of the model: a ring over a mesh, or one process."""
    options: dict[str, Any] = {"mask_mod": masks.causal(), "score_mod": alibi}

    def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float | None = None, **_: Any) -> tuple[Tensor, None]:
        if mesh is None:
            o = attention(q, k, v, scale=scaling, **options)
        else:
            o = ring_attention(q, k, v, mesh=mesh, placement="zigzag", strategy="ring", scale=scaling, **options)
        return o.transpose(1, 2), None

    AttentionInterface.register("attn_mlir_ring", attend)
    AttentionMaskInterface.register("attn_mlir_ring", lambda *_, **__: None)
    return "attn_mlir_ring"


def train(mesh: DeviceMesh | None) -> list[float]:
    """The losses of a few steps."""
    torch.manual_seed(0)
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, **heads)
    config._attn_implementation = register(mesh)
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(64, (2, LENGTH + 1))
    batch = (tokens[:, :-1], tokens[:, 1:], torch.arange(LENGTH).expand(2, -1))
    if mesh is not None:
        batch = tuple(shard(x, mesh, seq_dim=1, placement="zigzag") for x in batch)  # type: ignore[assignment]
    inputs, targets, positions = batch
    losses = []
    for _ in range(STEPS):
        logits = model(input_ids=inputs, position_ids=positions, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / tokens[:, 1:].numel()
        optimizer.zero_grad()
        loss.backward()
        total = loss.detach()
        if mesh is not None:
            dist.all_reduce(total, group=mesh.get_group())
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=mesh.get_group())
        optimizer.step()
        losses.append(float(total))
    return losses


def work(rank: int, store: str) -> None:
    """One process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(store, RANKS), rank=rank, world_size=RANKS)
    losses = train(init_device_mesh("cpu", (RANKS,)))
    if rank == 0:
        alone = train(None)
        print("two processes:", " ".join(f"{loss:.6f}" for loss in losses))
        print("one process:  ", " ".join(f"{loss:.6f}" for loss in alone))
        assert max(abs(x - y) for x, y in zip(losses, alone, strict=True)) < 1e-4
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (f"{folder}/store",), nprocs=RANKS)  # type: ignore[no-untyped-call]
