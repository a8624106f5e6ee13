"""Ops that carry a state from token to token: state-space models, RWKV and linear attention."""
