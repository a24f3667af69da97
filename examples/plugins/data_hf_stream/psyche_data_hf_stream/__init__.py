"""A data plugin for Psyche: HfStream."""
