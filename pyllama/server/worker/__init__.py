"""The thread that steps the engine, and the threads that prepare requests."""
