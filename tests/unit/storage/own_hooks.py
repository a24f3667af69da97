"""A module of hooks that registers nothing, for conformance tests of stores that need no registration."""


def psyche_register_model_stores() -> list[object]:
    """Nothing."""
    return []
