"""llama.cpp's flags that these tools do not support, with the reason or the alternative.

    why_not("completion", "--mmproj")              # "only text models are supported; ..."
    why_not("completion", "--tmep")                # None: not a flag of llama.cpp

A test checks that no flag listed here is supported. The module has no imports of its own, so that
an error message is fast.
Source: llama.cpp build 11434: ``common/arg.cpp``, the tools' own parsers and
``convert_hf_to_gguf.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

OP_OFFLOAD = "each op runs where its weights are"
_LOOKAHEAD = (
    "lookahead decoding is left out: a step would have dozens of rows, which costs more on a CPU "
    "than it gains; use --lookup, --spec-type suffix or -md"
)
_MEDIA = "only text models are supported; no images, audio or video"
_THOUGHTS = (
    "the chat template decides which earlier reasoning it keeps; some have a variable for it: "
    """--chat-template-kwargs '{"clear_thinking": false}'"""
)

_EVERYWHERE: dict[str, tuple[str, ...]] = {  # reason -> flags
    # model features
    "pyllama-embedding computes embeddings and ranks documents": ("-embd", "--embd-gemma-default"),
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
    # generation
    "files of heads are not downloaded beside a model; -md or -hfd takes one of --spec-type "
    "draft-eagle3, draft-mtp, draft-dflash or draft-dspark": ("--dflash", "--eagle3"),
    _LOOKAHEAD: ("--lookahead",),
    "drafts are verified by the target; accept rates cannot be made up": (
        "--spec-synth-len", "--spec-synth-rates",
    ),
    "there is one thread pool: -C, -Cr, --cpu-strict, --prio and --poll apply to the draft too": (
        "-Cd", "--cpu-mask-draft", "--spec-draft-cpu-mask", "-Crd", "--cpu-range-draft",
        "--spec-draft-cpu-range", "--cpu-strict-draft", "--spec-draft-cpu-strict",
        "--prio-draft", "--spec-draft-prio", "--poll-draft", "--spec-draft-poll", "-Cbd",
        "--cpu-mask-batch-draft", "--spec-draft-cpu-mask-batch", "-Crbd",
        "--cpu-range-batch-draft", "--spec-draft-cpu-range-batch", "--cpu-strict-batch-draft",
        "--spec-draft-cpu-strict-batch", "--prio-batch-draft", "--spec-draft-prio-batch",
        "--poll-batch-draft", "--spec-draft-poll-batch",
    ),
    "the CPU samples": (
        "--spec-draft-backend-sampling",
        "--no-spec-draft-backend-sampling",
    ),
    _THOUGHTS: ("--reasoning-preserve", "--no-reasoning-preserve"),
    "replies are printed without parsing": ("--skip-chat-parsing", "--no-skip-chat-parsing"),
    "--perf prints token counts at the end": ("-ptc", "--print-token-count"),
    "pyllama-tokenize prints the tokens of a prompt": ("--verbose-prompt",),
    "use --perf and --no-perf": ("--show-timings", "--no-show-timings"),
    "the prompt must be text: use -f": ("-bf", "--binary-file"),
    "continuous batching is always on": ("-nocb", "--no-cont-batching"),
    # devices and memory
    "-ngl auto offloads what fits, --vram-budget sets a limit, and --dry-run prints the plan": (
        "-fit", "--fit", "-fitp", "--fit-print", "-fitt", "--fit-target", "-fitc", "--fit-ctx",
    ),
    "a backend chooses the memory for copies": ("--no-host",),
    "-devd and -ngld place a draft model": (
        "-otd", "--override-tensor-draft", "--spec-draft-override-tensor", "-cmoed",
        "--cpu-moe-draft", "--spec-draft-cpu-moe", "-ncmoed", "--n-cpu-moe-draft",
        "--spec-draft-ncmoe", "--spec-draft-n-cpu-moe",
    ),
    "there is no RPC backend": ("--rpc", "-rpc"),
    "a mapped file is read on demand, page by page; --no-mmap reads all of it": (
        "-lzm", "--lazy-mode",
    ),
    "there is one thread pool: -C, -Cr, --cpu-strict, --prio and --poll also apply to prompts": (
        "-Cb", "--cpu-mask-batch", "-Crb", "--cpu-range-batch", "--cpu-strict-batch",
        "--prio-batch", "--poll-batch",
    ),
    "the cache needs no defragmentation": ("-dt", "--defrag-thold"),
    # model files
    "download the file and pass it with -m, or use -hf user/model:QUANT": (
        "-mu", "--model-url", "-dr", "--docker-repo",
    ),
    "models are in huggingface_hub's cache; list it with: hf cache ls": ("-cl", "--cache-list"),
    "there is no preset for this model; name a model with -hf user/model:QUANT": (
        "--gpt-oss-20b-default", "--gpt-oss-120b-default", "--vision-gemma-4b-default",
        "--vision-gemma-12b-default",
    ),
    # output
    "see --help": ("--usage",),
    """for bash completion: eval "$(_PYLLAMA_CLI_COMPLETE=bash_source pyllama-cli)\"""": (
        "--completion-bash",
    ),
    "there is no log file; redirect stderr: 2> FILE": (
        "--log-file", "--log-prompts-dir", "--log-colors", "--log-prefix", "--no-log-prefix",
        "--log-timestamps", "--no-log-timestamps", "-lv", "--verbosity", "--log-verbosity",
    ),
    # flags of a single tool
    "pyllama-server does not have this": (
        "--server-base", "--swa-checkpoints", "--kv-unified-per-slot", "--ui-config",
        "--webui-config", "--ui-config-file", "--webui-config-file", "--tools-runtime",
        "--mcp-servers-config", "--mcp-servers-json", "-ag", "--agent", "-no-ag", "--no-agent",
    ),
    "only perplexity and --kl-divergence are computed": (
        "--hellaswag", "--hellaswag-tasks", "--winogrande", "--winogrande-tasks",
        "--multiple-choice", "--multiple-choice-tasks",
    ),
    "a model drafts with its layer of multi-token prediction by --spec-type draft-mtp": (
        "--nextn",
    ),
    "all sequences are generated in one batch": ("-tgs",),
    "--save DIR writes any node; for the logits add --tensor-filter result_output": (
        "--save-logits", "--logits-output-dir",
    ),
    "pyllama has no counterpart of the tool that this flag belongs to": (
        "--context-file", "--chunk-size", "--chunk-separator", "--junk", "--pos",
    ),
}  # fmt: skip

_OF_TOOLS: dict[str, dict[str, tuple[str, ...]]] = {  # looked up before _EVERYWHERE
    "completion": {
        "redirect stdout, which has only the text: > FILE": ("-o", "--output", "--output-file"),
        "files of heads are not downloaded; use --spec-type draft-mtp": ("--mtp",),
    },
    "convert": {
        "files are always little-endian": ("--bigendian",),
        "tensors are always read and written one at a time": ("--use-temp-file", "--no-lazy"),
        "download the folder first: hf download user/model": ("--remote",),
        "use pyllama-gguf split on the converted file": ("--no-tensor-first-split",),
        "docs/architectures.md lists the supported models": ("--print-supported-models",),
        "only Hugging Face folders are read": (
            "--mistral-format", "--disable-mistral-community-chat-template",
        ),
        _MEDIA: ("--mmproj",),
        "dense layers after the pooling are always converted": (
            "--sentence-transformers-dense-modules",
        ),
        "DSpark heads of DeepSeek-V4 are not converted": ("--dspark",),
        "matrices are not fused": ("--fuse-gate-up-exps", "--fuse-qkv"),
        "FP8 checkpoints are not supported": ("--fp8-as-q8",),
    },
    "split": {
        "splitting is what this command does; to merge use pyllama-gguf merge": (
            "--split", "--merge",
        ),
        "the source file is kept": ("--delete-splits",),
    },
    "merge": {
        "merging is what this command does; to split use pyllama-gguf split": (
            "--merge", "--split",
        ),
        "the parts are kept": ("--delete-splits",),
    },
}  # fmt: skip


def why_not(tool: str | None, flag: str) -> str | None:
    """Return why a tool does not support a flag; None if it is not a flag of llama.cpp's."""
    for table in (by_reason(tool) if tool in _OF_TOOLS else {}, _EVERYWHERE):
        for reason, flags in table.items():
            if flag in flags:
                return reason
    return None


def by_reason(tool: str | None = None) -> Mapping[str, Sequence[str]]:
    """Return reason -> flags, of all tools (None) or particular to one tool."""
    return _EVERYWHERE if tool is None else _OF_TOOLS[tool]


def tools() -> Iterable[str]:
    """Return the tools that have a table of their own."""
    return _OF_TOOLS.keys()
