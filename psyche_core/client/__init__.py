"""The client: `machine` decides, `runtime` acts, `model_sync` exchanges models with other members, `setup` puts it together."""
