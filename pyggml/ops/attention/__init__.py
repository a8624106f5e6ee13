"""Attention, its masks, and rotary positions."""
