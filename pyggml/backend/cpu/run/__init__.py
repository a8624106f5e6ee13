"""Running compiled graphs: threads, Ctrl-C, times of chunks."""
