"""How text is written: the sampling engine, the KV cache, local and API models, prompts, samples.jsonl.
In: a model and prompts. Out: completions, one by one as they end.
Read engine.py first."""
