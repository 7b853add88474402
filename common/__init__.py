"""Small tools that all packages share: files written atomically, the hub, tables, figures, flags, statistics."""
