"""The seeded order of sequences and of mixtures, equal on every machine."""
