"""Pictures and pages of what the compiler did: which blocks a mask skips, and how a program is computed, from its functions to its code."""
