"""File formats of training data, shared by built-in providers and plugins: flat token files and the seeded order of sequences."""
