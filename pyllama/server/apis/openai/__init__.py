"""OpenAI's API, and llama-server's completions, which it extends."""
