"""Downloads of models: the Hugging Face hub and the demo model."""
