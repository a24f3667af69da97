"""What must hold in every simulated run, and the exception for an invariant that broke."""
