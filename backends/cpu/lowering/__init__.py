"""Lowering rules from scheduled tile IR to vector, scf and llvm."""
