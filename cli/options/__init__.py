"""The options of the tools, a group of them a file."""
