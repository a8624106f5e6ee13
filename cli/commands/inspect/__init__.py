"""Commands that print facts: the machine, the values of a graph's nodes, the graph itself."""
