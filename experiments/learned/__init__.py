"""Learned fields compared with a grid: the study behind `docs/learned.md`."""
