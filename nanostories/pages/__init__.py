"""HTML: the report, the pages of interpret.py and probe.py, and the page that tells stories. Read
html.py first (how a page is made), then result_files.py and overview.py (the report) or
story_page.py and engine.js."""
