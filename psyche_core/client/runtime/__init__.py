"""The client's shell: it carries out what `psyche_core.client.machine` decides.

`runtime` turns backend and transport into events and actions into I/O; `worker` owns model, optimizer and data in one thread
(`resources`, opened by `opening`), and `work_failures` counts what goes wrong there; `checkpointing` and `restoring` keep the
model on disk; `payloads`, `read_ahead` and `downloads` feed the worker; `coordinator_requests` asks the coordinator. What people
are shown is in `reports`.
"""
