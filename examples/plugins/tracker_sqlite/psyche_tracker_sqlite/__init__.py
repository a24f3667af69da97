"""A tracker plugin for Psyche: sqlite."""
