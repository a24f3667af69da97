"""One decoder each; what a target is says `tests.fuzz.harness`."""
