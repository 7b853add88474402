"""How good the stories are: likelihood judges and chat judges, controls that test them, and metrics without a judge.
In: samples.jsonl. Out: grades.jsonl (every reply), grades.csv, grades.png; from probe.py, probe.csv and marks.csv; from
instruct.py, instruct.csv.
Read rubrics.py first, then scores_from_likelihood.py, judge_replies.py and compare_models.py."""
