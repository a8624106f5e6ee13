"""Ops that only training uses: losses and steps of optimizers."""
