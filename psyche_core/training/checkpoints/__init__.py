"""A member's model on disk: checkpoints and their manifests, the journal of rounds applied since, and where a client loads a
model from at its start. How files appear whole, and object stores, are in `psyche_core.storage`.
"""
