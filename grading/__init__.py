"""How good the stories are: judges that read or are asked, whether to believe them, controls, metrics without a judge.
In: samples.jsonl. Out: grades.jsonl (every reply), grades.csv, grades.png; of probe.py
probe.csv and marks.csv, of instruct.py instruct.csv.
Read rubrics.py first, then scores_from_likelihood.py, judge_replies.py and compare_models.py."""
