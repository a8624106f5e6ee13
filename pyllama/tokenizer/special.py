"""Special tokens: ids by role, end-of-generation tokens, tokens that strip spaces.

    roles = read_roles(keys, n_tokens=3, defaults={"eos": 2})
    ends = find_eog(roles, {"</s>": 2})

Pure functions of the vocabulary. As in llama.cpp, most of it is found by the text of tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .metadata import Metadata

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Role -> metadata keys; of two, the older one is first and takes precedence.
_KEYS: dict[str, tuple[str, ...]] = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id",),
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
    "fim_pre": ("prefix_token_id", "fim_pre_token_id"),
    "fim_suf": ("suffix_token_id", "fim_suf_token_id"),
    "fim_mid": ("middle_token_id", "fim_mid_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}

# Role -> token texts that imply it if the metadata does not name it. llama.cpp takes the first in
# the order of its hash table; this is the first in the list.
_TEXTS: dict[str, tuple[str, ...]] = {
    "eot": (
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    ),
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}

_EOG_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
)
_ALWAYS_SHOWN = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


def read_roles(keys: Metadata, n_tokens: int, defaults: Mapping[str, int]) -> dict[str, int]:
    """Token ids by role, from the metadata or the defaults.

    There is no token of a role whose id in the metadata is not in the vocabulary.

    Raises:
        TokenizerError: an id in the metadata is not an integer.
    """
    roles = {role: token for role, token in defaults.items() if token < n_tokens}
    for role, names in _KEYS.items():
        given = [keys.token_id(name, n_tokens) for name in names if name in keys]
        legal = [token for token in given if token is not None]
        if given:
            roles.pop(role, None)
        if legal:
            roles[role] = legal[0]
    return roles


def detect_roles(known: Mapping[str, int], ids: Mapping[str, int]) -> dict[str, int]:
    """Token ids by role for roles not ``known``, found by the text of tokens."""
    return {
        role: next(ids[text] for text in texts if text in ids)
        for role, texts in _TEXTS.items()
        if role not in known and any(text in ids for text in texts)
    }


def find_eog(roles: Mapping[str, int], ids: Mapping[str, int]) -> frozenset[int]:
    """Ids of all tokens that end a generation.

    Source: llama.cpp, ``llama_vocab::impl::load``.
    """
    eog_roles = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
    ends = {roles[role] for role in eog_roles if role in roles}
    ends |= {ids[text] for text in _EOG_TEXTS if text in ids}

    def has(*texts: str) -> bool:
        return any(ids.get(text) in ends for text in texts)

    # These are ordinary tokens in vocabularies that have certain other end tokens.
    if has("<|call|>", "<|calls|>") and has("<|return|>", "<|flush|>"):
        ends.discard(ids.get("<|end|>", -1))
    if has("<|tool_response>", "<|plamo:eos|>"):
        ends.discard(ids.get("</s>", -1))
    return frozenset(ends)


def override_types(
    types: list[int], detected: Iterable[int], eog: frozenset[int], ids: Mapping[str, int]
) -> None:
    """Correct, in place, the types of tokens that are special by their text.

    Args:
        types: token types by id.
        detected: tokens with a role found by their text.
        eog: tokens that end a generation.
        ids: id by text.

    Source: llama.cpp, ``llama_vocab::impl::load``.
    """
    for token in detected:
        types[token] = CONTROL
    for text in _EOG_TEXTS:
        if text in ids:
            demoted = NORMAL if text == "</s>" else USER_DEFINED
            types[ids[text]] = CONTROL if ids[text] in eog else demoted
    for text in _ALWAYS_SHOWN:
        if text in ids:
            types[ids[text]] = USER_DEFINED


def space_strippers(
    keys: Metadata, pre: str, special: Iterable[int], ids: Mapping[str, int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Tokens that strip white space on their left, and on their right, when parsed in text.

    GGUF has no key for this; as in llama.cpp, it depends on names of models.
    """
    name = (keys.full_text("general.name") or "").lower()
    architecture = keys.full_text("general.architecture") or ""

    def found(*texts: str) -> frozenset[int]:
        return frozenset(ids[text] for text in texts if text in ids)

    masks = ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert")
    if any(part in pre for part in masks) or architecture in ("nomic-bert-moe", "jina-bert-v3"):
        return found("<mask>"), frozenset()
    if "phi-3" in name or "phi3" in name:
        return frozenset(), (found("</s>") | {*special}) - found("<unk>", "<s>", "<|endoftext|>")
    return found("[MASK]") if "modern-bert" in name else frozenset(), frozenset()
