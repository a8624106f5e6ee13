"""What a request may say: fields, limits, and errors."""
