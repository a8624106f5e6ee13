"""From a Hugging Face folder to a GGUF file."""
