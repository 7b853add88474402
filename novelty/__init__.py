"""The exact search of a whole training set, and which texts it shows to be copied: for rouge.py and synthesize.py.
In: texts, and data/<name>/. Out: for each text its nearest story, its longest spans, and a flag.
Read search.py first; words.py makes a training set a stream of word ids."""
