"""Judges (models and people), controls, metrics, probes: how good the stories are, and whether to
believe it."""
