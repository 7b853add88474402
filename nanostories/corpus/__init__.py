"""From stories to tokens on disk: built-in stories, files of your own, downloads; cleaning; the
tokenizer."""
