"""AttentionEngine's `autotuner`, of which programs import `autotuner.arch`."""
