"""A member's model on disk: checkpoints and their manifests, the journal of rounds applied since, and where a model is loaded
from when a client starts. How files appear whole, and object stores, are in `psyche_core.storage`.
"""
