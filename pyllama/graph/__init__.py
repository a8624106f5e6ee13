"""What architecture files build their graphs from."""
