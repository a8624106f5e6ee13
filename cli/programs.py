"""The sub-commands of ``pyllama``: each has a line in ``COMMANDS``, and small ones share a file."""

COMMANDS = {
    "Generate text": {
        "completion": ".commands.completion:command",
        "parallel": ".commands.parallel:command",
        "diffusion": ".commands.diffusion:command",
        "run": ".commands.run:command",
        "serve": ".commands.serve:command",
        "cluster": ".commands.cluster:command",
        "batch": ".commands.batch:command",
    },
    "Generate text with drafts": {
        "speculative": ".commands.speculative:command",
        "speculative-simple": ".commands.speculative:simple",
        "lookup": ".commands.lookup:command",
        "lookup-create": ".commands.lookup:create",
        "lookup-merge": ".commands.lookup:merge",
        "lookup-stats": ".commands.lookup:stats",
    },
    "Compare texts": {"embedding": ".commands.embedding:command"},
    "Measure": {
        "bench": ".commands.bench:command",
        "batched-bench": ".commands.batched_bench:command",
        "embedding": ".commands.embedding:command",
        "perplexity": ".commands.perplexity:command",
    },
    "Inspect": {
        "info": ".commands.inspect.info:command",
        "tokenize": ".commands.tokenize:command",
        "eval-callback": ".commands.inspect.eval_callback:command",
        "graph": ".commands.inspect.graph:command",
    },
    "Make and change model files": {
        "convert": ".commands.convert:command",
        "convert-lora": ".commands.adapters.convert_lora:command",
        "export-lora": ".commands.adapters.export_lora:command",
        "finetune": ".commands.adapters.finetune:command",
        "quantize": ".commands.quantize:command",
        "imatrix": ".commands.imatrix:command",
        "cvector-generator": ".commands.adapters.cvector_generator:command",
        "gguf": ".commands.gguf:command",
        "powerinfer": ".commands.powerinfer:command",
    },
}
"""For each section of the help page, the commands and where they are."""

PROGRAM_NAMES = {  # of programs that are not called pyllama-<command>
    "cluster": "pyllama cluster",
    "completion": "pyllama-cli",
    "run": "pyllama run",
    "serve": "pyllama-server",
}
