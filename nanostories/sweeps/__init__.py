"""The lists of experiments.py: their runs planned, trained and measured; the table, the picture,
the scaling law."""
