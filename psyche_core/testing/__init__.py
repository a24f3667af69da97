"""For plugin authors: one conformance class per kind. A three-line subclass runs all of it against an implementation."""
