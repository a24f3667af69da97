"""What comes with psyche-core, registered through the same hooks as all other plugins."""
