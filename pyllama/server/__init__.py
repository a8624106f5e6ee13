"""An HTTP server on the engine, and its web pages."""
