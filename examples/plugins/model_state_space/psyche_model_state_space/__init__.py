"""A model plugin for Psyche: StateSpace."""
