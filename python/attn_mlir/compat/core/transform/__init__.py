"""AttentionEngine's `core.transform`, of which programs import `core.transform.core`."""
