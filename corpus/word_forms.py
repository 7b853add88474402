from instruct import pattern  # placeholder until H3 merges
