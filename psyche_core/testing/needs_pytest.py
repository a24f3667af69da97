"""pytest, for the conformance classes; where it is missing, the error names the extra that installs it."""

try:
    import pytest as pytest
except ModuleNotFoundError as error:
    message = "the conformance classes of psyche_core.testing need pytest; install it with: pip install 'psyche-core[testing]'"
    raise ModuleNotFoundError(message, name="pytest") from error
