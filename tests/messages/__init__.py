"""Tests of the transforms of messages."""
