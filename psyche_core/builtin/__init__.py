"""What comes with psyche-core, registered through the same hooks as everybody else's plugins."""
