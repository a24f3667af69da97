"""A member's connection to the coordinator server."""
