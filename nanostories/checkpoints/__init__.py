"""Models on disk: the checkpoints that train.py writes, and the files of Hugging Face's
transformers."""
