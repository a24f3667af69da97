"""For plugin authors: one conformance class per kind.

A three-line subclass runs all tests of a class against an implementation.
"""
