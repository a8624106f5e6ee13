"""Forms of attention: compressed keys (MLA), chosen keys (DSA), shared ones, factors, gates."""
