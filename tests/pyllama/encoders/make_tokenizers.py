"""Make the small tokenizers of the tests' encoders, in tests/data/tokenizer/.

    python -m tests.pyllama.encoders.make_tokenizers

Needs tokenizers and sentencepiece. They are trained on the pages of docs/ and the tests' texts.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from ..arch.checkpoints import DATA, N_VOCAB
from .texts import TEXTS

FOLDER = DATA / "tokenizer"
LINES = [
    line
    for path in sorted((DATA.parents[1] / "docs").glob("*.md"))
    for line in path.read_text(encoding="utf-8").splitlines()
]


def _save(name: str, text: str, settings: dict[str, object]) -> None:
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def wordpiece() -> None:
    """BERT's: lower case, no accents."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=N_VOCAB, special_tokens=special, limit_alphabet=200, show_progress=False
    )
    made.train_from_iterator([*LINES, *TEXTS * 9], trainer)
    made.decoder = decoders.WordPiece()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    names = ("pad", "unk", "cls", "sep", "mask")
    settings = {f"{role}_token": text for role, text in zip(names, special, strict=True)}
    _save("bert", made.to_str(), {**settings, "tokenizer_class": "BertTokenizer"})


def byte_level() -> None:
    """RoBERTa's: GPT-2's words."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCAB, special_tokens=special, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    made.train_from_iterator([*LINES, *TEXTS * 9], trainer)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    settings = {
        f"{role}_token": text
        for role, text in zip(("bos", "pad", "eos", "unk", "mask"), special, strict=True)
    }
    settings |= {"cls_token": "<s>", "sep_token": "</s>"}
    _save("roberta", made.to_str(), {**settings, "tokenizer_class": "RobertaTokenizer"})


def byte_fallback() -> None:
    """Gemma's: SentencePiece's BPE with bytes, and the same merges in tokenizer.json."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*LINES, *TEXTS * 9]), model_writer=model, vocab_size=N_VOCAB,
        model_type="bpe", byte_fallback=True, add_dummy_prefix=False, minloglevel=2,
        remove_extra_whitespaces=False, normalization_rule_name="identity", character_coverage=0.98,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", bos_piece="<bos>",
        eos_piece="<eos>",
    )  # fmt: skip
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    ids = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    merges = [
        (text[:cut], text[cut:])
        for text in ids  # those merged first come first
        for cut in range(1, len(text))
        if text[0] != "<" and text[:cut] in ids and text[cut:] in ids
    ]
    bpe = models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    made = tokenizers.Tokenizer(bpe)
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    made.add_special_tokens(["<pad>", "<eos>", "<bos>", "<unk>"])
    settings = {f"{role}_token": f"<{role}>" for role in ("pad", "eos", "bos", "unk")}
    settings |= {"add_bos_token": True, "add_eos_token": True}
    _save("gemma", made.to_str(), {**settings, "tokenizer_class": "GemmaTokenizer"})
    (FOLDER / "gemma" / "tokenizer.model").write_bytes(model.getvalue())


def _rules() -> Path:
    """A file with a few rules of normalization, as the usual ones would make large files."""
    rules = Path("/tmp/rules.tsv")
    rules.write_text("FB01\t66 69\nBD\t31 2044 32\n2460\t31\n9\t20\nA\t20\n3000\t20\n")
    return rules


def unigram() -> None:
    """XLM-RoBERTa's: SentencePiece with rules of normalization, after its four special tokens."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*LINES, *TEXTS * 9]), model_writer=model, vocab_size=N_VOCAB - 2,
        normalization_rule_tsv=str(_rules()), character_coverage=0.995, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(p.piece, p.score) for p in proto.pieces[3:]]
    pieces.append(("<mask>", 0.0))
    assert len(pieces) <= N_VOCAB
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    made.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(charsmap), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    ends = [("<s>", 0), ("</s>", 2)]
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ends
    )
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    made.add_special_tokens([*special, tokenizers.AddedToken("<mask>", lstrip=True)])
    settings = {
        f"{role}_token": text
        for role, text in zip(("bos", "pad", "eos", "unk"), special, strict=True)
    }
    settings |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    assert base64.b64encode(charsmap).decode() in made.to_str()
    _save("xlm-roberta", made.to_str(), {**settings, "tokenizer_class": "XLMRobertaTokenizer"})


def t5() -> None:
    """T5's: SentencePiece's Unigram, words are cut at white space."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*LINES, *TEXTS * 9]), model_writer=model, vocab_size=N_VOCAB - 12,
        character_coverage=0.995, minloglevel=2, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        normalization_rule_tsv=str(_rules()), hard_vocab_limit=False,
    )  # fmt: skip
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    sentinels = [f"<extra_id_{i}>" for i in range(9, -1, -1)]
    pieces = [(p.piece, p.score) for p in proto.pieces] + [(text, 0.0) for text in sentinels]
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=2))
    made.normalizer = normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    made.decoder = decoders.Metaspace()
    ends = [("</s>", 1)]
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=ends
    )
    made.add_special_tokens(["<pad>", "</s>", "<unk>", *sentinels])
    settings = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    _save("t5", made.to_str(), {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})


if __name__ == "__main__":
    wordpiece()
    byte_level()
    byte_fallback()
    unigram()
    t5()
