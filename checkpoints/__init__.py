"""Models on disk: the checkpoints that train.py writes, and the files of Hugging Face's transformers.
In: a run's directory, or a transformers directory or hub ID. Out: a GPTNeo and its tokenizer; and the reverse.
Read checkpoint.py first."""
