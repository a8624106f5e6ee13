"""The functions of ``pyllama-gguf``: describe, edit, hash, validate and compare GGUF files.

They read a file once, a few megabytes at a time, and print nothing. Splitting and merging is in
`pyggml.gguf`.
"""
