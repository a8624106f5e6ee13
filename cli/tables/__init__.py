"""Tables that the tools print."""
