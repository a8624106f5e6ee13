"""One command-line tool in each file, as ``command``."""
