"""llama.cpp's flags that these tools do not have, with the reason, or the way to do it here.

    why_not("completion", "--lora")                # "LoRA adapters are not supported yet; ..."
    why_not("completion", "--tmep")                # None: not a flag of llama.cpp

A flag that a tool supports must not stand here: a test compares. Nothing but strings, so that an
error message costs no imports.
Source: llama.cpp's ``common/arg.cpp`` of build 11434, its tools' own parsers, and
``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

NO_GPU = "there is no GPU backend yet"
_ADAPTERS = "LoRA adapters are not supported yet; llama-export-lora merges one into a model"
_EMBEDDINGS = "embeddings and reranking are not supported yet"
_SPECULATION = "there is no speculative decoding yet; the text is the same without it"
_SERVER = "there is no server yet; pyllama.Llama gives the same results in Python"
_MEDIA = "models read text only, neither images nor audio nor video"
_SAMPLER = "this sampler does not exist here yet; --samplers lists those that do"
_GRAMMAR = "grammars are not supported yet; in Python, a logits_processor can restrict tokens"
_PRESET = "there are no presets; name a model with -hf user/model:QUANT"
_THOUGHTS = (
    "thoughts are printed as they are written; where a template can switch them off: "
    """--chat-template-kwargs '{"enable_thinking": false}'"""
)
_LOG = "there is no log; messages go to stderr: 2> FILE"
_ONE_TEMPLATE = "replies are printed as they are written"
_TASKS = "only perplexity and --kl-divergence are computed"
_NOT_THIS_TOOL = "pyllama has no counterpart of the tool that it belongs to"

_EVERYWHERE: dict[str, tuple[str, ...]] = {  # reason -> flags
    # what a model computes
    _ADAPTERS: ("--lora", "--lora-scaled", "--lora-init-without-apply"),
    "control vectors are not supported yet": (
        "--control-vector", "--control-vector-scaled", "--control-vector-layer-range",
    ),
    _EMBEDDINGS: (
        "--pooling", "--attention", "--embedding", "--embeddings", "-embd", "--rerank",
        "--reranking", "--embd-normalize", "--embd-output-format", "--embd-separator",
        "--cls-separator", "--embd-gemma-default",
    ),
    _MEDIA: (
        "-mm", "--mmproj", "-mmu", "--mmproj-url", "--mmproj-auto", "--no-mmproj",
        "--no-mmproj-auto", "--mmproj-offload", "--no-mmproj-offload", "-mmdev", "--mmproj-device",
        "--image", "--audio", "--video", "--image-min-tokens", "--image-max-tokens",
        "--mtmd-batch-max-tokens", "--video-fps", "--video-timestamp-interval",
        "--video-ffmpeg-dir", "--tts-lang", "--tts-speaker-file", "--media-path",
    ),
    "group attention (self-extend) is not supported; --rope-scaling yarn extends a context": (
        "-gan", "--grp-attn-n", "-gaw", "--grp-attn-w",
    ),
    # how a text is made
    _SPECULATION: (
        "-md", "--model-draft", "--spec-draft-model", "-hfd", "-hfrd", "--hf-repo-draft",
        "--spec-draft-hf", "-td", "--threads-draft", "--spec-draft-threads", "-tbd",
        "--threads-batch-draft", "--spec-draft-threads-batch", "-Cd", "--cpu-mask-draft",
        "--spec-draft-cpu-mask", "-Crd", "--cpu-range-draft", "--spec-draft-cpu-range",
        "--cpu-strict-draft", "--spec-draft-cpu-strict", "--prio-draft", "--spec-draft-prio",
        "--poll-draft", "--spec-draft-poll", "-Cbd", "--cpu-mask-batch-draft",
        "--spec-draft-cpu-mask-batch", "-Crbd", "--cpu-range-batch-draft",
        "--spec-draft-cpu-range-batch", "--cpu-strict-batch-draft",
        "--spec-draft-cpu-strict-batch", "--prio-batch-draft", "--spec-draft-prio-batch",
        "--poll-batch-draft", "--spec-draft-poll-batch", "-ctkd", "--cache-type-k-draft",
        "--spec-draft-type-k", "-ctvd", "--cache-type-v-draft", "--spec-draft-type-v", "-otd",
        "--override-tensor-draft", "--spec-draft-override-tensor", "-cmoed", "--cpu-moe-draft",
        "--spec-draft-cpu-moe", "-ncmoed", "--n-cpu-moe-draft", "--spec-draft-ncmoe",
        "--spec-draft-n-cpu-moe", "--spec-draft-n-max", "--spec-draft-n-min", "--spec-synth-len",
        "--spec-synth-rates", "--draft-p-split", "--spec-draft-p-split", "--draft-p-min",
        "--spec-draft-p-min", "--spec-draft-backend-sampling", "--no-spec-draft-backend-sampling",
        "--spec-draft-sampling", "-devd", "--device-draft", "--spec-draft-device", "-ngld",
        "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl", "--spec-type",
        "--spec-default", "--spec-ngram-mod-n-min", "--spec-ngram-mod-n-max",
        "--spec-ngram-mod-n-match", "--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m",
        "--spec-ngram-simple-min-hits", "--spec-ngram-map-k-size-n", "--spec-ngram-map-k-size-m",
        "--spec-ngram-map-k-min-hits", "--spec-ngram-map-k4v-size-n",
        "--spec-ngram-map-k4v-size-m", "--spec-ngram-map-k4v-min-hits", "--spec-ngram-size-n",
        "--spec-ngram-size-m", "--spec-ngram-min-hits", "--draft", "--draft-n", "--draft-max",
        "--draft-min", "--draft-n-min", "-lcs", "--lookup-cache-static", "-lcd",
        "--lookup-cache-dynamic", "--dflash", "--eagle3", "--mtp",
    ),
    _SAMPLER: (
        "--typical", "--typical-p", "--top-nsigma", "--top-n-sigma", "--xtc-probability",
        "--xtc-threshold", "--dry-multiplier", "--dry-base", "--dry-allowed-length",
        "--dry-penalty-last-n", "--dry-sequence-breaker", "--adaptive-target", "--adaptive-decay",
        "--dynatemp-range", "--dynatemp-exp", "--mirostat", "--mirostat-lr", "--mirostat-ent",
    ),
    "name the samplers in full: --samplers 'top_k;top_p;temperature'": (
        "--sampler-seq", "--sampling-seq",
    ),
    f"{NO_GPU}, and the CPU samples anyway": ("-bs", "--backend-sampling"),
    _GRAMMAR: ("--grammar", "--grammar-file", "-j", "--json-schema", "-jf", "--json-schema-file"),
    _THOUGHTS: (
        "--reasoning-format", "-rea", "--reasoning", "--reasoning-effort", "--reasoning-budget",
        "--reasoning-budget-message", "--reasoning-preserve", "--no-reasoning-preserve",
    ),
    _ONE_TEMPLATE: ("--skip-chat-parsing", "--no-skip-chat-parsing"),
    "--perf counts the tokens at the end": ("-ptc", "--print-token-count"),
    "pyllama-tokenize prints the tokens of a prompt": ("--verbose-prompt",),
    "use --perf and --no-perf": ("--show-timings", "--no-show-timings"),
    "a prompt is text: give it with -f": ("-bf", "--binary-file"),
    "sequences always join and leave a batch as they begin and end": (
        "-nocb", "--no-cont-batching",
    ),
    # where it is computed, and where weights lie
    f"{NO_GPU}; leave it out, the CPU has all tensors": (
        "-ot", "--override-tensor", "-cmoe", "--cpu-moe", "-ncmoe",
        "--n-cpu-moe", "-ncffn", "--n-cpu-ffn", "-fit", "--fit", "-fitp", "--fit-print", "-fitt",
        "--fit-target", "-fitc", "--fit-ctx", "--no-host",
    ),
    "there is no backend on other machines": ("--rpc", "-rpc"),
    "this is the default; -nr switches it off": ("--repack",),
    "a mapped file is read page by page, when a weight is needed; --no-mmap reads all of it": (
        "-lzm", "--lazy-mode",
    ),
    "one pool of threads computes all: -C, -Cr, --cpu-strict, --prio and --poll are for prompts "
    "too": (
        "-Cb", "--cpu-mask-batch", "-Crb", "--cpu-range-batch", "--cpu-strict-batch",
        "--prio-batch", "--poll-batch",
    ),
    "the cache needs no defragmentation": ("-dt", "--defrag-thold"),
    # where a model comes from
    "fetch the file and give it with -m, or use -hf user/model:QUANT": (
        "-mu", "--model-url", "-dr", "--docker-repo",
    ),
    "models are in the cache of huggingface_hub, whose program lists it: hf cache ls": (
        "-cl", "--cache-list",
    ),
    _PRESET: (
        "--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default",
        "--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--fim-qwen-30b-default",
        "--gpt-oss-20b-default", "--gpt-oss-120b-default", "--vision-gemma-4b-default",
        "--vision-gemma-12b-default",
    ),
    # what is said
    "see --help": ("--usage",),
    """eval "$(_PYLLAMA_CLI_COMPLETE=bash_source pyllama-cli)" has bash complete its flags""": (
        "--completion-bash",
    ),
    _LOG: (
        "--log-file", "--log-jsonl", "--no-log-jsonl", "--log-prompts-dir", "--log-colors",
        "--log-prefix", "--no-log-prefix", "--log-timestamps", "--no-log-timestamps", "-lv",
        "--verbosity", "--log-verbosity", "--log-verbose",
    ),
    # of single tools
    _SERVER: (
        "--server-base", "-ctxcp", "--ctx-checkpoints", "--swa-checkpoints", "-cms",
        "--checkpoint-min-step", "-cram", "--cache-ram", "--cache-idle-slots",
        "--no-cache-idle-slots", "--kv-unified-per-slot", "--spm-infill", "-a", "--alias",
        "--tags", "--host", "--port", "--reuse-port", "--path", "--cors-origins",
        "--cors-methods", "--cors-headers", "--cors-credentials", "--no-cors-credentials",
        "--api-prefix", "--ui-config", "--webui-config", "--ui-config-file",
        "--webui-config-file", "--ui-mcp-proxy", "--webui-mcp-proxy", "--no-ui-mcp-proxy",
        "--no-webui-mcp-proxy", "--tools", "--tools-runtime", "--mcp-servers-config",
        "--mcp-servers-json", "-ag", "--agent", "-no-ag", "--no-agent", "--ui", "--webui",
        "--no-ui", "--no-webui", "--api-key", "--api-key-file", "--ssl-key-file",
        "--ssl-cert-file", "-to", "--timeout", "--sse-ping-interval", "--threads-http",
        "--cache-prompt", "--no-cache-prompt", "--cache-reuse", "--metrics", "--props", "--slots",
        "--no-slots", "--slot-save-path", "--models-dir", "--models-preset", "--models-max",
        "--models-autoload", "--no-models-autoload", "--prefill-assistant",
        "--no-prefill-assistant", "-sps", "--slot-prompt-similarity", "--sleep-idle-seconds",
    ),
    _TASKS: (
        "--hellaswag", "--hellaswag-tasks", "--winogrande", "--winogrande-tasks",
        "--multiple-choice", "--multiple-choice-tasks",
    ),
    "only the estimate over whole chunks is computed": (
        "--ppl-stride", "--ppl-output-type",
    ),
    "layers that predict further tokens are not loaded": ("--nextn",),
    "the texts of all sequences are generated in one batch": ("-tgs",),
    "--save DIR writes any node, the logits by --tensor-filter result_output": (
        "--save-logits", "--logits-output-dir",
    ),
    _NOT_THIS_TOOL: (
        "--context-file", "--chunk-size", "--chunk-separator", "--junk", "--pos",
        "--positive-file", "--negative-file", "--pca-batch", "--pca-iter", "--method",
        "--diffusion-steps", "--diffusion-visual", "--diffusion-eps", "--diffusion-algorithm",
        "--diffusion-alg-temp", "--diffusion-block-length", "--diffusion-cfg-scale",
        "--diffusion-add-gumbel-noise", "-lr", "--learning-rate", "-lr-min",
        "--learning-rate-min", "-decay-epochs", "--learning-rate-decay-epochs", "-wd",
        "--weight-decay", "-val-split", "--val-split", "-epochs", "--epochs", "-opt",
        "--optimizer",
    ),
}  # fmt: skip

_OF_TOOLS: dict[str, dict[str, tuple[str, ...]]] = {  # before those of everywhere
    "completion": {
        "the text goes to stdout and nothing else does: > FILE": (
            "-o", "--output", "--output-file",
        ),
    },
    "convert": {
        "files are little-endian": ("--bigendian",),
        "tensors are read and written one at a time, which needs little memory": (
            "--use-temp-file", "--no-lazy",
        ),
        "fetch the folder first: hf download user/model": ("--remote",),
        "pyllama-gguf split has it, for the file that is made": ("--no-tensor-first-split",),
        "docs/architectures.md lists what can be converted": ("--print-supported-models",),
        "only Hugging Face folders are read": (
            "--mistral-format", "--disable-mistral-community-chat-template",
        ),
        _MEDIA: ("--mmproj",),
        _EMBEDDINGS: ("--sentence-transformers-dense-modules",),
        "layers that predict further tokens are not converted": (
            "--mtp", "--no-mtp", "--no-nextn", "--dspark", "--target-model-dir",
        ),
        "matrices stay apart, as in the folder": ("--fuse-gate-up-exps", "--fuse-qkv"),
        "checkpoints in 8 bits are not read": ("--fp8-as-q8",),
    },
    "split": {
        "it is the default, with another command for the way back: pyllama-gguf merge": (
            "--split", "--merge",
        ),
        "the source stays": ("--delete-splits",),
    },
    "merge": {
        "it is a command of its own: pyllama-gguf merge and pyllama-gguf split": (
            "--merge", "--split",
        ),
        "the parts stay": ("--delete-splits",),
    },
}  # fmt: skip


def why_not(tool: str | None, flag: str) -> str | None:
    """Why a tool does not have a flag of llama.cpp's; None if llama.cpp has none of that name."""
    for table in (by_reason(tool) if tool in _OF_TOOLS else {}, _EVERYWHERE):
        for reason, flags in table.items():
            if flag in flags:
                return reason
    return None


def by_reason(tool: str | None = None) -> Mapping[str, Sequence[str]]:
    """The flags of each reason: those of all tools, or those of one tool alone."""
    return _EVERYWHERE if tool is None else _OF_TOOLS[tool]


def tools() -> Iterable[str]:
    """The tools with flags of their own in the table."""
    return _OF_TOOLS.keys()
