"""An optimizer plugin for Psyche: MajorityVote."""
