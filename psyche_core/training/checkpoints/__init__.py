"""A member's model on disk: checkpoints and their manifests, the journal of rounds applied since, and where a client loads a
model from at its start. Atomic writing of folders and access to object stores are in `psyche_core.storage`.
"""
