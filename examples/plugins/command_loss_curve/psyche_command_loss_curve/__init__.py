"""A command plugin for Psyche: loss-curve."""
