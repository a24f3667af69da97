"""For plugin authors: one conformance class per kind. A three-line subclass runs all its tests against an implementation."""
