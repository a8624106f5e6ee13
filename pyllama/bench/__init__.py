"""How fast a model is here."""
