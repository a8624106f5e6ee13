"""The commands, one a file; ``programs.py`` lists them."""
