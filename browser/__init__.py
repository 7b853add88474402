"""A model outside Python: its weights rounded and packed, and the engine in JavaScript that tells stories with them.
In: a GPTNeo and its tokenizer. Out: bytes and facts for pages/story.html; engine.js runs in the page's worker.
Read engine.js first (tokenizer, model, drawing), then quantize.py (how weights are rounded, and what that costs);
pack_model.py puts together what the page needs."""
