"""The exact search of a whole training set, and which texts it shows to be copied: for rouge.py."""
