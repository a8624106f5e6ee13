"""How good a model is: perplexity, KL divergence, importance matrices."""
