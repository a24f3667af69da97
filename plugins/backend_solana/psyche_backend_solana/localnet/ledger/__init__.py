"""The local chain itself: LiteSVM, slots, blocks, transactions, and the state file."""
