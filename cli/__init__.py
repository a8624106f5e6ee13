"""The command-line tools: options in, results out, errors as exit codes; no numerics here.

Installed under the name ``pyllama_cli``. One file in ``commands`` is one tool.
"""
