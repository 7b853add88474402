"""From stories to tokens on disk: built-in stories, files of your own, downloads; cleaning; the tokenizer.
In: text. Out: data/<name>/{train.bin, val.bin, meta.json}.
Read ../prepare.py first."""
