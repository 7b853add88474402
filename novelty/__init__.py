"""Whether a model recites: ROUGE, and an exact search of the whole training set for shared n-grams.
In: samples.jsonl and data/<name>/. Out: rouge.json, rouge.png, flagged.txt.
Read ngram_search.py first."""
