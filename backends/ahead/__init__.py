"""Libraries made ahead of time: what they have in common, whatever the target. No backend: those that make libraries share it."""
