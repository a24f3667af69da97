"""A data plugin for Psyche: Jsonl."""
