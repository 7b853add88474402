"""Text generation: prompts, sampling and beam search, the KV cache, local and API models, samples.jsonl.
In: a model and prompts. Out: completions as they end. The API client, which chat judges use as well, is here, too.
Read backends.py first, then generation_loop.py."""
