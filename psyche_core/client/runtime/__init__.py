"""The client's shell: it carries out what `psyche_core.client.machine` decides.

`runtime` turns backend and transport into events and actions into I/O; `worker` owns model, optimizer and data in one thread
(`resources`); `checkpointing` and `restoring` keep the model on disk; `payloads`, `read_ahead` and `download_limiter`
feed the worker.
"""
