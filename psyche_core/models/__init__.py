"""Models that train: `hf` wraps transformers models, `sharding` divides one among processes, `memory` measures what fits."""
