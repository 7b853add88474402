"""How good the stories are: an LLM judge and whether to believe it, control texts, metrics without a judge.
In: samples.jsonl. Out: grades.jsonl (every reply), grades.csv, grades.png.
Read judge.py first, then scoreboard.py."""
