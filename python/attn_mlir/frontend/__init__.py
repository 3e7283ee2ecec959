"""Tracing: plain Python functions, called once on symbolic values, become the `attn` dialect."""
