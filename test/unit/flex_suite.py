"""PyTorch's tests of FlexAttention, function by function, and the tests here that cover what they check.

The names are those of test/inductor/test_flex_attention.py and test_flex_decoding.py of PyTorch 2.10. A value without "test_" in front
says why there is nothing to cover; `MODS`, `MASKS` and `CALL` are test_flex_score_mods.py, test_flex_block_mask.py and
test_flex_attention.py.
"""

MODS, MASKS, CALL = "score_mods", "block_mask", "attention"
INDUCTOR = "internal: it reads Inductor's graphs, generated code, logs or choice of a Triton kernel"

_BUILTIN = f"{MODS}: test_builtin_score_mods"
_SIZES = f"{MODS}: test_builtin_score_mods_other_sizes"
_DTYPES = f"{MODS}: test_builtin_score_mods_dtypes"
_TABLES = f"{MODS}: test_captured_tables"
_SMALL_TABLES = f"{MODS}: test_captured_tables_of_16_bits_and_integers"
_SCORES = f"{MODS}: test_masks_in_scores"
_CHANGED = f"{MODS}: test_a_changed_branch_and_a_changed_scale"
_POISON = f"{MODS}: test_poisoned_tables_and_scores"
_DIMS = f"{MODS}: test_head_dims"
_FUNCTIONS = f"{MODS}: test_functions_of_the_score"
_EQUAL = f"{MASKS}: test_tables_are_torchs"
_IN_GRAPH = f"{MASKS}: test_made_inside_of_torch_compile"
_KV_BLOCKS = f"{MASKS}: test_from_kv_blocks"
_ONLY_TABLES = f"{MASKS}: test_tables_without_a_mask_function"
_SLICES = f"{MASKS}: test_attributes_and_slices"
_TREES = f"{MASKS}: test_trees"
_LENGTHS = f"{MASKS}: test_devices_and_lengths"
_PAGED = f"{MASKS}: test_paged_attention"
_AUX = f"{CALL}: test_auxiliary_outputs"
_ONE_GRAPH = f"{CALL}: test_lengths_that_change_compile_nothing"
_MASK_GRAPH = f"{CALL}: test_the_mask_is_made_in_the_graph"
_GROUPED = f"{CALL}: test_grouped_heads_scale_and_one_batch_of_keys"
_MODULES = f"{CALL}: test_modules_of_several_calls"
_ORDERS = f"{CALL}: test_orders_of_memory"
_STRIDES = f"{CALL}: test_odd_strides"
_OPTIONS = f"{CALL}: test_kernel_options_change_nothing"
_ERRORS = f"{CALL}: test_errors_are_torchs"
_MERGED = f"{CALL}: test_parts_of_a_row_are_merged_by_their_lse"
_GRADCHECK = f"{CALL}: test_gradcheck"
_DTYPE = f"{CALL}: test_keys_of_another_dtype"
_EMPTY = f"{CALL}: test_no_queries_and_no_keys"
_REDUCED = "vectors: test_against_torch"

ATTENTION = {
    "test_builtin_score_mods": f"{_BUILTIN}, {_DTYPES}, {_PAGED}",
    "test_builtin_score_mods_seqlen_lt_default_sparse_block_size": _BUILTIN,
    "test_builtin_score_mods_seqlen_lt_custom_sparse_block_size": f"{_SIZES}, {_LENGTHS}",
    "test_builtin_score_mods_dynamic": f"{_BUILTIN}, {_ONE_GRAPH}",
    "test_builtin_score_mods_automatic_dynamic": f"{_BUILTIN}, {_ONE_GRAPH}",
    "test_builtin_score_mods_different_seqlen": _SIZES,
    "test_builtin_score_mods_different_block_size": f"{_EQUAL}, {_BUILTIN}",
    "test_kv_batch_broadcast": f"{_SIZES}, {_GROUPED}",
    "test_small_block_mask": f"{_IN_GRAPH}, {_EQUAL}",
    "test_kv_batch_broadcast_causal_mask": _GROUPED,
    "test_GQA": f"{_SIZES}, {_GROUPED}",
    "test_strided_inputs": f"{_STRIDES}, {_ORDERS}",
    "test_doc_mask_sparse": _SCORES,
    "test_index_multiple": _TABLES,
    "test_index_weird1": _TABLES,
    "test_index_weird2": _TABLES,
    "test_skip_odd_keys": _SCORES,
    "test_function_composition": _SCORES,
    "test_captured_buffers_all_dims": _TABLES,
    "test_seq_masking": f"{_SMALL_TABLES}, {_SCORES}",
    "test_load_from_bias_seq_only": _TABLES,
    "test_load_from_bias_seq_batch": _TABLES,
    "test_load_from_view_buffer": _MODULES,
    "test_load_from_bias_head_seq_batch": _TABLES,
    "test_load_rel_bias": _TABLES,
    "test_dependent_causal_bidirectional": _SCORES,
    "test_natten_2d": _SCORES,
    "test_subgraph_respect_decompostion": INDUCTOR,
    "test_silu_on_score": _FUNCTIONS,
    "test_padded_dense_causal": _SCORES,
    "test_captured_scale": f"{_SMALL_TABLES}, {_CHANGED}",
    "test_recompile_changed_score_mod": _CHANGED,
    "test_captured_reduction": _REDUCED,
    "test_dynamic_captured_buffer": f"{_ONE_GRAPH}, {_TABLES}",
    "test_return_max": f"{_AUX}, {_SIZES}",
    "test_return_aux": f"{_AUX}, {_SIZES}",
    "test_return_aux_deprecation_warnings": f"{CALL}: test_return_lse",
    "test_dynamic_divisibility_guards": INDUCTOR,
    "test_mask_mod_handles_symint_addition": _MASK_GRAPH,
    "test_multiple_score_mod_calls": _MODULES,
    "test_multiple_mask_calls": f"{_MODULES}, {_MERGED}",
    "test_multiple_score_mod_calls2": _MODULES,
    "test_multiple_score_mod_calls_paged_attention": f"{_MODULES}, {_PAGED}",
    "test_multiple_score_mod_calls2_paged_attention": f"{_MODULES}, {_PAGED}",
    "test_inputs_are_realized": f"{_MODULES}, {_MASK_GRAPH}",
    "test_make_block_mask": _IN_GRAPH,
    "test_mask_mod_combiners": _EQUAL,
    "test_epilogue_fused": INDUCTOR,
    "test_njt_causal": _SCORES,
    "test_mixed_dtypes_fails": _DTYPE,
    "test_max_autotune": f"{_BUILTIN}, {_SIZES}",
    "test_max_autotune_with_captured": _TABLES,
    "test_non_equal_head_dims": _DIMS,
    "test_autograd_function_in_score_mod": "autograd_functions: test_forward_and_backward",
    "test_causal_block": f"{_GROUPED}, {MASKS}: test_attention_takes_it_too",
    "test_causal_block_paged_attention": _PAGED,
    "test_new_empty_mask_mod": "flex_helpers: test_a_mask_and_scores_of_new_tensors",
    "test_non_pow_2_headdim": _DIMS,
    "test_GQA_causal_mask": _GROUPED,
    "test_custom_block_mask_generator": f"{_KV_BLOCKS}, {_EQUAL}",
    "test_logsumexp_correctness": f"{_AUX}, {_SIZES}",
    "test_logsumexp_only_return": INDUCTOR,
    "test_aot_eager_gradcheck": f"{_GRADCHECK}, {_BUILTIN}, {_FUNCTIONS}",
    "test_eager_backward_strides": f"{_ORDERS}, {_MODULES}",
    "test_differentiable_logsumexp_gradcheck": _GRADCHECK,
    "test_differentiable_logsumexp_compiled": f"{_MERGED}, {_GRADCHECK}",
    "test_float32_matmul_precision": _BUILTIN,
    "test_captured_score_mod_aot_eager_gradcheck": f"{_GRADCHECK}, {_TABLES}",
    "test_document_masking_edge_case": _EQUAL,
    "test_strided_backwards": INDUCTOR,
    "test_flex_attention_stride_ordering": f"{_ORDERS}, {_STRIDES}",
    "test_flex_attention_backward_stride_ordering": _ORDERS,
    "test_non_contiguous_last_dim": _STRIDES,
    "test_fully_masked_out_rows_0_check": f"{_AUX}, {_SCORES}",
    "test_fully_masked_out_rows": _AUX,
    "test_kernel_options_argument_is_respected": INDUCTOR,
    "test_backend_auto_matches_triton_large": INDUCTOR,
    "test_backend_triton_decode_matches_auto": INDUCTOR,
    "test_backend_triton_decode_errors_when_not_supported": INDUCTOR,
    "test_backend_triton_decode_errors_with_non_power_of_two_gqa": INDUCTOR,
    "test_backend_rejects_legacy_force_use_flag": _ERRORS,
    "test_backend_defaults_and_rejects_invalid": INDUCTOR,
    "test_block_mask_non_divisible": _EQUAL,
    "test_causal_block_non_divisible": f"{_ONE_GRAPH}, {_EQUAL}",
    "test_modular_indexing": _MODULES,
    "test_force_write_lse": f"{_AUX}, {_PAGED}",
    "test_lse_masked_output": _MERGED,
    "test_mixed_device_error_message": _ERRORS,
    "test_captured_wrong_device_error_message": INDUCTOR,
    "test_cant_lower_error_message": "vectors: test_what_is_refused",
    "test_reduction_unrolled": _REDUCED,
    "test_invalid_block_size": INDUCTOR,
    "test_small_q_kv_len": f"{_SIZES}, {_GRADCHECK}",
    "test_dynamic_shapes_bug_dynamic_batch": _MASK_GRAPH,
    "test_dynamic_shapes_with_custom_kernel_options": _OPTIONS,
    "test_dynamic_shapes_with_max_autotune": _ONE_GRAPH,
    "test_zero_length_sequence_error": _EMPTY,
    "test_causal_block_non_divisible_with_captured_buffer": _ONE_GRAPH,
    "test_non_divisible_with_captured_buffer": f"{_TABLES}, {_SMALL_TABLES}",
    "test_num_warps_8_error": _DIMS,
    "test_qkv_and_block_mask_on_the_same_device": _LENGTHS,
    "test_free_symbol_dynamic": f"{_ONE_GRAPH}, {_MASK_GRAPH}",
    "test_symbol_closure_in_score_mod": INDUCTOR,
    "test_fw_bw_graph_correctness": INDUCTOR,
    "test_tensor_subclass_dispatch_order": INDUCTOR,
    "test_cpu_error_message_return_lse": f"{CALL}: test_return_lse",
    "test_device_cuda_1": "needs two GPUs",
    "test_custom_score_mod_layout_freeze": f"{_TABLES}, {_MODULES}",
    "test_selective_ac": INDUCTOR,
    "test_selective_ac_with_max_autotune_short_query": _MODULES,
    "test_validate_small_embedding_size_error_message": _DIMS,
    "test_triton_template_warp_specialization": INDUCTOR,
    "test_tma_with_customer_kernel_options": _OPTIONS,
    "test_large_batch_heads_grid_dimension": "needs a GPU with 20 GB: a grid larger than 65535 of CUDA",
    "test_debug_flag_disables_internal_compilation": INDUCTOR,
}

BLOCK_MASK = {
    "test_block_mask_attributes": f"{_EQUAL}, {_SLICES}",
    "test_block_size_changes": _EQUAL,
    "test_getitem": _SLICES,
    "test_sliced_blockmask_mask_mod_error": _SLICES,
    "test_block_mask_device_change": _LENGTHS,
    "test_compiling_create_block_mask": _IN_GRAPH,
    "test_compiling_create_block_mask_no_recompile": _IN_GRAPH,
    "test_block_mask_viz": _EQUAL,
    "test_from_kv_blocks": _KV_BLOCKS,
    "test_block_size": _KV_BLOCKS,
    "test_upcast_appropriately": _SMALL_TABLES,
    "test_init_mismatched_full_kv": _KV_BLOCKS,
    "test_init_mismatched_full_q": _KV_BLOCKS,
    "test_doc_mask_clamped_repro": f"{_EQUAL}, {_IN_GRAPH}",
    "test_eager_tracing_correctness": f"{_MODULES}, {_DIMS}",
    "test_create_is_cuda_graphable": f"{MASKS}: test_a_million_positions",
    "test_block_mask_vs_sequence_lengths": _LENGTHS,
    "test_from_kv_blocks_without_q_computation": _KV_BLOCKS,
    "test_backward_error_with_none_q_indices": _ONLY_TABLES,
    "test_flex_attention_poisoned_rel_logits": _POISON,
    "test_flex_attention_poison_mod_fwd": _POISON,
    "test_flex_attention_poison_mod_bwd": f"{_POISON}, {_FUNCTIONS}",
    "test_forward_pass_with_none_q_indices": _ONLY_TABLES,
    "test_block_mask_operations_with_none_q_indices": f"{_KV_BLOCKS}, {_LENGTHS}",
    "test_broadcasted_head_block_mask": f"{MASKS}: test_a_slice_with_a_mask_of_its_own",
    "test_pytree_flatten_unflatten": _TREES,
    "test_pytree_flatten_with_keys": _TREES,
    "test_pytree_preserves_new_attributes": _TREES,
}

PAGED = {
    "test_page_allocation": "of torch's PagedAttention alone, which is used as it is",
    "test_allocate": "of torch's PagedAttention alone, which is used as it is",
    "test_convert_logical_block_mask": _PAGED,
    "test_convert_mask_mod": _PAGED,
    "test_update": "of torch's PagedAttention alone, which is used as it is",
    "test_paged_builtin_score_mods": _PAGED,
}

_BIASES = (
    "relative_1d_bias", "absolute_2d_bias", "head_specific_bias", "batch_head_bias", "multiplicative_bias", "local_window_bias",
    "global_tokens_bias", "weird_bias", "indirect_bias", "symmetric_bias", "flipped_indexed_bias", "head_specific_gate", "distinct_biases",
    "learnable_bias_global_compiled", "head_bias_req_grad", "comparison_vs_sdpa_with_learnable_bias",
)  # fmt: skip
LEARNABLE = {f"test_{name}": _TABLES for name in _BIASES} | {
    "test_backprop_error_case": _MODULES,
    "test_relative_1d_bias_only_grad": f"{MODS}: test_only_the_bias_needs_a_gradient",
    "test_flex_attention_with_dynamic_max_autotune": _GROUPED,
    "test_flex_attention_with_dynamic_max_autotune_graph_partition": _GROUPED,
    "test_flex_attention_logging": INDUCTOR,
    "test_inspect_bug": _IN_GRAPH,
}

_WINDOWS = [f"test_windowed_{kind}_vs_sdpa" for kind in ("no_mask", "full_mask", "partial_block")]
DECODING = {
    "test_bw_decoding_fails": _DIMS,
    "test_builtin_score_mods": _SIZES,
    "test_paged_attention_page_size": _PAGED,
    "test_builtin_score_mods_different_block_size": f"{_EQUAL}, {_SIZES}",
    "test_tma_decoding": _OPTIONS,
    "test_strided_inputs": _STRIDES,
    "test_kv_batch_broadcast": _SIZES,
    "test_skip_odd_keys": _SCORES,
    "test_function_composition": _SCORES,
    "test_captured_buffers": _TABLES,
    "test_captured_buffers_all_dims": _TABLES,
    "test_seq_masking": _SMALL_TABLES,
    "test_non_divisible_offset_mask": f"{_EQUAL}, {MASKS}: test_a_slice_with_a_mask_of_its_own",
    "test_non_divisible_offset_mask_with_captured_buffer": f"{_EQUAL}, {_TABLES}",
    "test_non_divisible_multi_token_offset_mask": f"{_EQUAL}, {MASKS}: test_a_slice_with_a_mask_of_its_own",
    "test_non_divisible_multi_token_offset_mask_with_captured_buffer": f"{_EQUAL}, {_TABLES}",
    "test_load_from_bias_seq_only": _TABLES,
    "test_load_from_bias_seq_batch": _TABLES,
    "test_load_from_bias_head_seq_batch": _TABLES,
    "test_non_equal_head_dims": _DIMS,
    "test_head_dependent_mask_mod": f"{_ONLY_TABLES}, {_EQUAL}",
    "test_subgraph_respect_decompostion": INDUCTOR,
    "test_silu_on_score": _FUNCTIONS,
    "test_padded_dense_causal": _SCORES,
    "test_captured_scale": f"{_SMALL_TABLES}, {_CHANGED}",
    "test_recompile_changed_score_mod": _CHANGED,
    "test_non_pow_2_headdim": _DIMS,
    "test_captured_reduction": _REDUCED,
    "test_multiple_score_mod_calls": _MODULES,
    "test_multiple_score_mod_calls2": _MODULES,
    "test_multiple_score_mod_calls_paged_attention": f"{_MODULES}, {_PAGED}",
    "test_multiple_score_mod_calls_paged_attention2": f"{_MODULES}, {_PAGED}",
    "test_njt_causal": _SCORES,
    "test_mixed_dtypes": _DTYPE,
    "test_mixed_dtypes_sqnr_per_tensor": _DTYPE,
    "test_mixed_dtypes_sqnr_per_head": _DTYPE,
    "test_mixed_dtype_backwards": INDUCTOR,
    "test_max_autotune": _SIZES,
    "test_max_autotune_with_captured": _TABLES,
    "test_fully_masked_out_rows_0_check_gqa": f"{_AUX}, {_GROUPED}",
    **dict.fromkeys(_WINDOWS, f"{_SCORES}, {_MERGED}"),
    **dict.fromkeys([f"{name}_paged_attention" for name in _WINDOWS], f"{_SCORES}, {_PAGED}"),
    "test_logsumexp_correctness": f"{_AUX}, {_SIZES}",
    "test_not_pw_of_two": _GROUPED,
    "test_logsumexp_only_return": INDUCTOR,
    "test_non_sparse_mulitple_block_size": f"{_EQUAL}, {_PAGED}",
    "test_do_not_trigger_dynamic_shapes_on_empty_block_mask": f"{_ONE_GRAPH}, {CALL}: test_empty_masks_of_torch",
    "test_multi_block_m": f"{_GROUPED}, {_OPTIONS}",
    "test_larger_block_mask_bug": f"{_GRADCHECK}, {_LENGTHS}",
    "test_decode_at_different_input_position": f"{_PAGED}, {_LENGTHS}",
}

SUITE = {
    "TestFlexAttention": ATTENTION, "TestBlockMask": BLOCK_MASK, "TestPagedAttention": PAGED, "TestLearnableBiases": LEARNABLE,
    "TestFlexDecoding": DECODING,
}  # fmt: skip
