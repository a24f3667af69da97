"""Follows a run's accounts for a member: reads, subscriptions, the chain's clock, the members' addresses."""
