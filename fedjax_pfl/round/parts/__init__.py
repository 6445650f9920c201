"""The parts of a round, one feature each."""
