"""The exact search of a whole training set, and which texts it shows to be copied: for rouge.py and synthesize.py.
In: texts, and data/<name>/. Out: for each text its nearest story, its longest spans, and a flag.
Read search.py first; words.py makes a training set a stream of word ids."""

from importlib.util import find_spec

if find_spec("numba") is None:
    raise SystemExit("the search of novelty/ needs numba, which compiles it: pip install -r requirements.txt")
