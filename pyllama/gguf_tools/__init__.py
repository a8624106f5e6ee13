"""What ``pyllama-gguf`` does, as functions: describe, change, hash, validate and compare files.

They read a file once, a few megabytes at a time, and print nothing. Cutting and merging are in
`pyggml.gguf`.
"""
