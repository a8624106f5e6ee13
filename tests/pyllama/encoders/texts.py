"""Texts that are difficult for tokenizers, which the tests of encoders begin with."""

TEXTS = (
    "Hello, world! How are you?",
    "a cat",
    "",
    "Ünïcödé: Straße, naïve café, İstanbul, ﬁn ½ ①",
    "你好世界 abc 日本語テキスト 한국어",
    "tabs\tand\nnew  lines   with spaces ",
    "emoji 🚀👩‍👩‍👧 zero\u200bwidth soft\u00adhyphen",
    "it's we'll DON'T 1,234.56 $5 #tag @user a_b-c/d\\e {x} <y> ~`^",
    "нещо на Български, Ελληνικά, עברית, नमस्ते, ไทย",
    "x" * 120 + " " + "word " * 30,
)
PAIRS = (("what is a cat?", "a cat is an animal"), ("Straße", "日本語 🚀"))
"""A query and a document, for cross-encoders."""
