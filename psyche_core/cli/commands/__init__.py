"""The commands of `psyche`, one module each, imported only when the command is called."""
