"""Models for training: `hf` wraps transformers models, `sharding` divides one among processes, `memory` measures memory."""
