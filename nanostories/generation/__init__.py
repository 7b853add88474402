"""Text generation: prompts, sampling and beam search, the KV cache, local and API models,
sets of stories."""
