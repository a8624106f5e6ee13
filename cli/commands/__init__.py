"""The sub-commands of ``pyllama``: each has a line in ``TABLE`` and a file."""

TABLE = {
    "completion": ".commands.completion:command",
    "bench": ".commands.bench:command",
    "batched-bench": ".commands.batched_bench:command",
    "parallel": ".commands.parallel:command",
    "perplexity": ".commands.perplexity:command",
    "tokenize": ".commands.tokenize:command",
    "info": ".commands.info:command",
    "eval-callback": ".commands.eval_callback:command",
    "graph": ".commands.graph:command",
    "convert": ".commands.convert:command",
    "quantize": ".commands.quantize:command",
    "imatrix": ".commands.imatrix:command",
    "gguf": ".commands.gguf:command",
    "powerinfer": ".commands.powerinfer:command",
}
