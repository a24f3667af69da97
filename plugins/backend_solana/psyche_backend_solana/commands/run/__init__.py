"""Commands about runs: of a run's owner (`owner`, `closing`, `authorizations`), of members (`members`), of anybody (`status`)."""
