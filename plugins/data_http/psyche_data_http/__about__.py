"""Version of psyche-data-http."""

__version__ = "0.1.0"
