"""Version of psyche-tracker-mlflow."""

__version__ = "0.1.0"
