"""Example transport for Psyche: messages and payloads of a run go through one Redis server."""
