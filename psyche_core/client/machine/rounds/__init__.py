"""What a client knows about rounds: shares and results, for whom it waits, and when its own training ends.

- `round` holds what is known of one round; `results` takes announcements in and asks for payloads.
- `waiting` says for whom and how long this member waits; `finish_estimator` when its own training ends.
- `settled_rounds` finds rounds in a coordinator's state that a journal can apply.
"""
