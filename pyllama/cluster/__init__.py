"""More than one process or machine: replicas of the server and batches of texts, with Ray.

    serve run pyllama.cluster.app:build model=x.gguf replicas=2
    pyllama cluster -m x.gguf --replicas 2         # the same, started and ended by one command
    pyllama-batch inputs.jsonl outputs.jsonl -m x.gguf

Needs the extra ``cluster``; nothing else imports this package, and only ``app``, ``session`` and
``batch`` import Ray, when they are used. docs/scaling.md says when to use what.
"""
