"""How weights lie in memory: plain or interleaved."""
