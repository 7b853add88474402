"""Models on disk: the checkpoints that train.py writes, and the files of Hugging Face's transformers.
In: a run's directory, or a directory or hub ID of transformers. Out: a GPTNeo and its tokenizer; and back.
Read checkpoint.py first."""
