"""How good the stories are: judges that read or are asked, whether to believe them, controls, metrics without a judge.
In: samples.jsonl. Out: grades.jsonl (every reply), grades.csv, grades.png.
Read rubrics.py first, then likelihood_scores.py, judge.py and scoreboard.py."""
