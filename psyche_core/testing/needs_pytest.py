"""pytest, for the conformance classes; where it is missing, the error names the extra that installs it."""

try:
    import pytest as pytest
except ModuleNotFoundError as _error:
    _message: str = (
        "the conformance classes of psyche_core.testing need pytest; install it with: pip install 'psyche-core[testing]'"
    )
    raise ModuleNotFoundError(_message, name="pytest") from _error
