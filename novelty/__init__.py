"""Is a run novel and diverse, or did it memorize? ROUGE, and an exact search of all training stories for its k-grams.
In: samples.jsonl and data/<name>/. Out: rouge.json, rouge.png, flagged.txt.
Read rouge_analysis.py first; the search is in ngram_search.py, the training set's words on disk in corpus_words.py."""
