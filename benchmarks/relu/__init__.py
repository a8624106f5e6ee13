"""A small LLaMA with ReLU gates, trained here: what sparse inference is measured on."""
