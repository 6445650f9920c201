"""The study of privacy, attacks, rules and methods behind `docs/atlas.md`."""
