"""The client as a pure state machine: events in, actions out. No clock, thread, socket or torch, directly or not.

`machine` takes each event to the module that it concerns, then asks what is due:

- `coordinator_updates` follows the coordinator: epochs, rounds, membership; `peer_messages` receives what peers send.
- `announcements` makes what this member announces: readiness, Finished, witness statements, health checks.
- `scheduler` chooses the next piece of work; `work_results` takes its outcome in.
- `epoch` holds what is known of the epoch, `buffers` what came early; `timeouts` has every time that a member waits.
- `rounds`: shares and results, for whom this member waits, when its own training ends.
- `replica`: digests, getting the model from other members when ours cannot be used, storing it for the run.
- `state` is everything the machine knows; `events` and `actions` are the vocabulary between it and the runtime.
"""
