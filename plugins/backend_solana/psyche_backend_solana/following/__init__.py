"""How a member follows a run's accounts: reads, subscriptions, the chain's clock, the members' addresses."""
