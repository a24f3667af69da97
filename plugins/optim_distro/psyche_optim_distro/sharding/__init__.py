"""Sharding engines of this plugin: `deepspeed`, tensor parallelism by DeepSpeed's AutoTP."""
