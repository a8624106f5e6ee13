"""Evaluation of models: perplexity, KL divergence, importance matrices."""
