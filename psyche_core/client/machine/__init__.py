"""The client as a pure state machine: events in, actions out. No clock, thread, socket or torch, directly or not.

`machine` takes each event to the module that it concerns, then asks what is due:

- `coordinator_updates` follows the coordinator: epochs, rounds, membership; `peer_messages` takes in what peers say.
- `announcements` makes what this member says: readiness, Finished, witness statements, health checks.
- `scheduler` chooses the next piece of work; `work_results` takes its outcome in.
- `results`, `round` and `epoch` hold what is known of results, rounds and the epoch; `buffers` what came early.
- `resync` (with `resync_state`) gets the model from other members when ours cannot be used; `digests` compares replicas.
- `waiting` and `timeouts` say for whom and how long this member waits; `finish_estimator` when its own training ends.
- `checkpoint_upload` stores the model for the run; `settled_rounds` finds rounds in a state that a journal can apply.
- `state` is everything the machine knows, `events` the vocabulary between it and the runtime.
"""
