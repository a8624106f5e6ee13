"""Connections and responses: listening, streams of events, security, logs."""
