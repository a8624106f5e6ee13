"""Chat: messages to prompts by a model's template or a named format, and replies to results."""
