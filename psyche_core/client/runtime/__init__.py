"""The part of the client that does I/O: it carries out what `psyche_core.client.machine` decides.

`runtime` turns input from the backend and the transport into events, and actions into I/O. `worker` owns model, optimizer and
data in one thread (`resources`, opened by `opening`); `work_failures` counts its errors. `checkpointing` saves the model to disk
and `restoring` loads it. `payloads`, `read_ahead` and `downloads` feed the worker. `coordinator_requests` sends requests to the
coordinator. Reports for people are in `reports`.
"""
