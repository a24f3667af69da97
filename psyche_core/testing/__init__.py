"""For plugin authors: one conformance class for each kind of plugin, in the module or package of the kind's name.

A three-line subclass runs all tests of a class against an implementation. `toy_model`, `tiny_models` and `ports` are what these
tests need, for other tests to use. The classes need pytest, the extra `testing`; `needs_pytest` says so where it is missing.
`pytest_plugin` lets pytest show the values in a failed assertion of these classes; pytest finds it by its entry point.
"""
