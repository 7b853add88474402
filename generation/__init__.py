"""How text is written: prompts, sampling and beam search, the KV cache, local and API models, samples.jsonl.
In: a model and prompts. Out: completions as they end; or, from an API, replies (the one API client is here).
Read backends.py first, then generation_loop.py."""
