"""Ops that move elements or change how they are addressed."""
