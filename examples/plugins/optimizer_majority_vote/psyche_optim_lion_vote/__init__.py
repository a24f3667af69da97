"""An optimizer plugin for Psyche: LionVote."""
