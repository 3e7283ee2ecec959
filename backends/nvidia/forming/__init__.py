"""What the passes that form kernels of the `warp` dialect share."""
