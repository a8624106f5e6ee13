"""Commands that show what a model and this machine do: the machine, nodes, graphs."""
