"""Version of psyche-backend-tcp."""

__version__ = "0.1.0"
