"""Router mode: several models behind one port, each in a process of its own.

Source: llama.cpp, ``tools/server/server-models.cpp``.
"""
