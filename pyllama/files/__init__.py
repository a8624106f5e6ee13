"""Model files: the demo model, the Hugging Face hub, limits for untrusted files."""
