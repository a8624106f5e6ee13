"""Models and contexts: loading, devices, graphs, saved states."""
