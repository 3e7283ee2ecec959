"""Compiler passes, and the names by which pipelines refer to them."""

import importlib
from collections.abc import Mapping

from attn_mlir.passes.base import Pass

_PASSES = {
    "attn-pack-heads": "pack_heads:PackHeads",
    "attn-recover-rows": "recover_rows:RecoverRows",
    "attn-simplify": "simplify:Simplify",
    "attn-differentiate": "differentiate:Differentiate",
    "attn-sum-diagonals": "sum_diagonals:SumDiagonals",
    "attn-rows-of-pairs": "rows_of_pairs:RowsOfPairs",
    "attn-cut-backward": "cut_backward:CutBackward",
    "attn-split-passes": "split_passes:SplitPasses",
    "attn-custom-vjp": "custom_vjp:CustomVjp",
    "attn-split-sequences": "split_sequences:SplitSequences",
    "attn-apply-mods": "apply_mods:ApplyMods",
    "attn-outline": "outline:Outline",
    "attn-resolve-masks": "resolve_masks:ResolveMasks",
    "attn-online-rewrite": "online_rewrite:OnlineRewrite",
    "attn-fit-range": "fit_range:FitRange",
    "attn-chunk-rewrite": "chunk_rewrite:ChunkRewrite",
    "attn-guard-empty-rows": "guard_empty_rows:GuardEmptyRows",
    "attn-expose-states": "expose_states:ExposeStates",
    "attn-split-kv": "split_kv:SplitKv",
    "attn-tile-rows": "tile_rows:TileRows",
    "attn-tile-pairs": "tile_pairs:TilePairs",
    "attn-tile-chunks": "tile_chunks:TileChunks",
    "attn-tile-sums": "tile_sums:TileSums",
    "attn-choose-kept": "choose_kept:ChooseKept",
    "attn-expand-dropout": "expand_dropout:ExpandDropout",
    "tile-load-windows": "load_windows:LoadWindows",
    "tile-add-windows": "add_windows:AddWindows",
    "tile-schedule": "tile_schedule:TileSchedule",
}


def load_pass(name: str, registry: Mapping[str, str] = _PASSES, package: str = "attn_mlir.passes") -> type[Pass]:
    """Imports the pass class registered as `name`. Raises KeyError for an unknown name."""
    module, _, cls = registry[name].partition(":")
    return getattr(importlib.import_module(f"{package}.{module}"), cls)


def pass_names() -> list[str]:
    """The names of the target-independent passes, in the order in which a pipeline runs them."""
    return list(_PASSES)
