"""Libraries made ahead of time for GPUs: what the backends of all vendors share."""
