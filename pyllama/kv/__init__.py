"""What a context remembers: keys and values, the lists of cells, saved states."""
