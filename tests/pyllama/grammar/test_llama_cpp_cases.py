"""llama.cpp's own cases: which grammars are accepted, and which texts they match.

Source: llama.cpp's tests test-grammar-parser, test-llama-grammar and test-grammar-integration.
"""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pyllama.errors import GrammarError
from pyllama.grammar import Grammar, Matcher

from .vocabularies import allowed, words

CASES = json.loads((Path(__file__).parent / "llama_cpp_cases.json").read_text(encoding="utf-8"))
BYTES = words([b"", *(bytes([i]) for i in range(256))], n_control=100)  # byte b is token b + 1


def matches(matcher: Matcher, text: str | list[str | int]) -> bool:
    """Whether a text is whole for a grammar; numbers are ids of control tokens."""
    for part in [text] if isinstance(text, str) else text:
        tokens = [byte + 1 for byte in part.encode()] if isinstance(part, str) else [300 + part]
        for token in tokens:
            if not matcher.allows(token):
                return False
            matcher.accept(token)
    return matcher.is_accepting


def control_tokens(grammar: str) -> str:
    """llama.cpp's cases have tokens 10 to 21, which are bytes in our vocabulary."""
    return grammar.replace("<[", "<[3")


@pytest.mark.parametrize("case", CASES["grammars"], ids=lambda case: case["name"])
def test_texts(case: dict[str, Any]) -> None:
    grammar = Grammar(control_tokens(case["grammar"]))
    control_everywhere = "!<[" in case["grammar"]
    for text in case["passing"]:
        # a negated token allows no other control token here
        foreign = control_everywhere and not isinstance(text, str) and _has_foreign(text)
        assert matches(grammar.matcher(BYTES), text) != foreign, text
    for text in case["failing"]:
        assert not matches(grammar.matcher(BYTES), text), text


def _has_foreign(text: list[str | int]) -> bool:
    """Whether a control token is within a free text, such as 12 in 10 ... 12 ... 11."""
    inside = None
    for part in text:
        if inside is not None and isinstance(part, int) and part != inside:
            return True
        if isinstance(part, int):
            ends = {10: 11, 20: 21, 12: 13, 13: 14}
            inside = ends.get(part) if inside is None or part == 13 else None
    return False


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a"{,}',
        'root ::= "a"{,10}',
        'root ::= "a"{5000}',
        'root ::= "a"{5000,}',
        'root ::= "a"{5000,6000}',
        "root ::= (((((([^x]*){0,99}){0,99}){0,99}){0,99}){0,99}){0,99}",
        'rot ::= expr\nexpr ::= "a"',
        'root ::= expr\nexpr ::= term ("+" term)*\nterm ::= numero\nnumber ::= [0-9]+',
        'root ::= "a" | root "a"',
        'root ::= asdf\nasdf ::= "a" | asdf "a"',
        'root ::= asdf\nasdf ::= "a" | foo "b"\nfoo ::= "c" | asdf "d" | "e"',
        'root ::= asdf\nasdf ::= "a" | foo "b"\nfoo ::= "c" | empty asdf "d" | "e"\n'
        'empty ::= "blah" | ',
    ],
)
def test_refused(grammar: str) -> None:
    with pytest.raises(GrammarError):
        Grammar(grammar)


def test_other_roots() -> None:
    assert Grammar('foobar ::= "foobar"', root="foobar")
    with pytest.raises(GrammarError, match="no rule 'nonexistent' to start with"):
        Grammar('root ::= "foobar"', root="nonexistent")


@pytest.mark.parametrize(
    ("grammar", "same"),
    [
        ('"a"{0,5000}', '"a"*'),
        ('"a"{3,5000}', '"aaa" "a"*'),
        ('"a" | [bdx-z] | [^1-3]', "[\\x00-0] | [4-\\U0010FFFF]"),
        ('a+\na ::= "a"', '"a" | "a" a\na ::= "a" a |'),
        ('"a"+', '"a" "a"*'),
        ('a?\na ::= "a"', '"a" |'),
        ('"a"?', '"" | "a"'),
        ('a*\na ::= "a"', '"a"*'),
        ('"ab"{2}', '"abab"'),
        ('"a"{2,}', '"aa" "a"*'),
        ('"a"{ 4}', '"aaaa"'),
        ('"a"{2,4}', '"aa" ("a" "a"?)?'),
        ('("a"?){2,4} "b"', '"a"{0,4} "b"'),
        ('"ab"*', '("a" "b")*'),
        ('"a"{0} "b"{0,0}', '""'),
        ('# comment\n  (#c\n[ab] | # d\n\n "b"\n)', "[a-b]"),
        ('"\\x61\\u0062\\U00000031\\n\\t\\r\\\\\\"\\[\\]"', '"ab1" "\n" [\t] [\r] [\\\\] "\\"[]"'),
        ("[a\\-b] [-a] [a-]", "[ab-] [a-] [a-]"),
        ('[^\\n] x\nx ::= "a"\nx ::= "b"', '[^\n] "b"'),  # the last definition counts
    ],
)
def test_equal_languages(grammar: str, same: str) -> None:
    one, two = (Grammar(f"root ::= {text}").matcher(BYTES) for text in (grammar, same))
    starts = one.mark(), two.mark()
    for text in product('ab1\n\t\r\\"[]-é'[:4], repeat=4):
        for char in text:
            mask = one.mask()
            assert (mask == two.mask()).all(), text
            assert one.is_accepting == two.is_accepting
            tokens = [byte + 1 for byte in char.encode()]
            if not all(one.allows(token) for token in tokens[:1]):
                break
            for token in tokens:
                one.accept(token)
                two.accept(token)
        one.rollback(starts[0])
        two.rollback(starts[1])


ARITHMETIC = """
root  ::= (expr "=" ws term "\\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \\t\\n]*
"""


def test_rejected_candidates() -> None:
    """test-llama-grammar's grammar: of the characters 37 to 59 only '(' and digits may begin."""
    mask = allowed(Grammar(ARITHMETIC).matcher(BYTES).mask())
    assert {code for code in range(37, 60) if code + 1 in mask} == {40, *range(48, 58)}


STRING = r"""
string ::= "\"" ([^\x00-\x1F"\\\x7F] | "\\" (["\\bfnrt] | "u" [0-9A-Fa-f]{4}))* "\"" ws
object ::= "{" ws (pair ("," ws pair)*)? "}" ws
pair ::= string ":" ws value
array ::= "[" ws (value ("," ws value)*)? "]" ws
value ::= string | object | number | array | ("null" | "true" | "false") ws
ws ::= (" " | "\n" [\t ]{0,20})?
"""
C = r"""
root ::= function*
function ::= type name "(" (type name)? ")" block
block ::= "{" statement* "}"
type ::= ("int" | "float" | "char") space
name ::= [_a-zA-Z] [_a-zA-Z0-9]*
statement ::= type? assign ";" | name space arguments ";" | "return" space sum ";" | comment |
    "while(" test ")" block |
    "if(" test ")" block ("else" block)? |
    "for(" type? assign ";" space test ";" space assign ")" block
assign ::= name space "=" space sum
test ::= sum ([<>] "="? | [=!] "=") sum
sum ::= product ([-+] product)*
product ::= factor ([*/] factor)*
factor ::= "-" factor | name | [0-9]+ | call | "(" space sum space ")"
call ::= name arguments
arguments ::= "(" (sum ("," space sum)*)? ")"
comment ::= "//" [^\n]* "\n" | "/*" ([^*] | "*" [^/])* "*/"
space ::= [\n\t ]+
"""

# by name of llama.cpp's grammars/*.gbnf: the same language in our text, and texts
FILES = {
    "c": (
        C,
        [
            "",
            "int main(){return 0;}",
            "float f(int x){int y = x*2+-3;y = g(y, ( y ));while(y<=10){y = y-1;}}int g(){}",
            "char c(){for(int i = 0; i<3; i = i+1){put (i);}if(a==b){}else{// x\n/* y * z */}}",
        ],
        [
            "int main(){return 0}",
            "int main() {}",
            "int 9f(){}",
            "int f(int x, int y){}",
            "int f(){x=1;}",
            "int f(){/* x}",
            "int f(){if(a=b){}}",
            "int f(){put(i);}",
            "double f(){}",
        ],
    ),
    "english": (
        "root ::= word ([ \\t\\n] word)*\nword ::= [!-~]+",
        ["Hello, world!", "a b\tc\nd", "{x} [y] \\ ~`^- 'z'"],
        ["", " a", "a  b", "a ", "é", "a\rb"],
    ),
    "json": (
        f"root ::= object\n{STRING}"
        'number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? exponent? ws\n'
        "exponent ::= [eE] [-+]? [0-9] [1-9]{0,15}\n",
        [
            "{}",
            '{"a": [1, -2.5e+3, true], "b": {"c": null}}\n',
            '{"x": "\\u00e9 \\n é"}',
            '{\n\t"a": 0, "b": 1e05}',
        ],
        ["[]", '{"a": 01}', '{"a": 1,}', "{'a': 1}", '{"a":  1}', '{"a": "\n"}', '{"a": 1e50}', ""],
    ),
    "json_arr": (
        f'root ::= "[\\n" ws (value (",\\n" ws value)*)? "]"\n{STRING}'
        'number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? exponent? ws\n'
        "exponent ::= [eE] [-+]? [1-9] [0-9]{0,15}\n",
        ["[\n]", '[\n1,\n"a",\n{"b": [2, 3]}]', '[\n {"a": 1e50}]'],
        ["[]", "[\n1, 2]", "[\n1]\n", "{}", "[\n1e05]", "[\n1,\n]"],
    ),
    "arithmetic": (
        ARITHMETIC,
        ["x = 1\n", "a+b*(c -d)=x\n", "1=2\n3=4\n"],
        ["x = 1", "= 1\n", "(a=1\n"],
    ),
    "chess": (
        'root ::= "1. " move " " move "\\n" ([1-9] [0-9]? ". " move " " move "\\n")+\n'
        "move ::= (pawn | nonpawn | castle) [+#]?\n"
        'nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]\n'
        'pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?\n'
        'castle ::= "O-O" "-O"?\n',
        ["1. e4 e5\n2. Nf3 Nc6\n", "1. d4 Nf6\n2. Bb5 O-O-O\n3. exd5 Qxd5+\n"],
        ["1. e4 e5\n", "1. e9 e5\n2. Nf3 Nc6\n", "1. e4 e5\n2. Nf3  Nc6\n"],
    ),
    "japanese": (
        "root ::= jp-char+ ([ \\t\\n] jp-char+)*\n"
        "jp-char ::= [ぁ-ゟ] | [ァ-ヿ] | [、-〾] | [一-鿿]",
        ["こんにちは、世界", "カタカナ 漢字"],
        ["hello", "こんにちは  世界", ""],
    ),
    "list": (
        'root ::= item+\nitem ::= "- " [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ "\\n"',
        ["- a\n", "- a b é\n- c\n"],
        ["- \n", "- a\x85\n", "- a", "- a\u2028\n"],
    ),
}
FOLDER = Path(os.environ.get("LLAMA_CPP_SOURCE", "/nonexistent")) / "grammars"


@pytest.mark.parametrize("name", FILES)
def test_grammars_of_files(name: str) -> None:
    check_texts(FILES[name][0], name)


@pytest.mark.skipif(not FOLDER.is_dir(), reason="needs LLAMA_CPP_SOURCE, llama.cpp's source")
@pytest.mark.parametrize("name", FILES)
def test_llama_cpps_files(name: str) -> None:
    check_texts((FOLDER / f"{name}.gbnf").read_text(encoding="utf-8"), name)


def check_texts(grammar: str, name: str) -> None:
    parsed, (_, good, bad) = Grammar(grammar), FILES[name]
    assert [text for text in good if not matches(parsed.matcher(BYTES), text)] == []
    assert [text for text in bad if matches(parsed.matcher(BYTES), text)] == []


@pytest.mark.parametrize("case", CASES["schemas"], ids=lambda case: case["name"])
def test_schemas(case: dict[str, Any]) -> None:
    """The schema cases, by the converter of JSON schemas."""
    pytest.importorskip("pyllama.grammar.schema.json_schema")
    schema = json.loads(case["schema"], object_hook=_without_unique_items)
    grammar = Grammar.from_json_schema(schema)
    for text in case["passing"]:
        assert matches(grammar.matcher(BYTES), text), text
    for text in case["failing"]:
        assert not matches(grammar.matcher(BYTES), text), text


def _without_unique_items(schema: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp ignores the keyword, ours refuses it."""
    return {key: value for key, value in schema.items() if key != "uniqueItems"}
