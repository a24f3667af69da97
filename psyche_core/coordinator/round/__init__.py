"""Rounds: who trains which samples and who witnesses them, what witnesses state, and when a round is over."""
