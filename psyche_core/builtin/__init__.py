"""The plugins included in psyche-core, registered through the same hooks as all others."""
