"""`Llama`, llama-cpp-python's class, and its parts."""
