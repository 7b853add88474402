"""Judges, controls, metrics, probes, instructions: how good the stories are, and whether to believe it.

In: samples.jsonl, runs. Out: rows of scores, findings, tables, pictures. Read scores.py and chat_judge.py first."""
