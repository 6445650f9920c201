"""Fields learned beside a grid of them: the study behind `docs/learned.md`."""
