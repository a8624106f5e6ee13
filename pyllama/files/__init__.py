"""Where models come from: the demo model, the Hugging Face hub; JSON of strangers."""
