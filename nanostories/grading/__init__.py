"""Judges, controls, metrics, probes, instructions: how good the stories are, and whether to believe
it."""
