// Colours comments, strings, numbers and keywords of code, alike in all languages.

import { h } from "./dom.js";

const HASH = ["python", "py", "sh", "bash", "shell", "zsh", "console", "ruby", "rb", "yaml", "yml",
  "toml", "r", "perl", "make", "makefile", "dockerfile", "ini"];
const DASH = ["sql", "lua", "haskell", "hs"];
const PLAIN = ["", "text", "txt", "plain", "markdown", "md", "diff", "csv", "html", "xml", "svg"];

const KEYWORDS = new Set(
  `abstract and as assert async await bool boolean break case catch char class const continue def
  default defer del delete do double elif else enum except export extends extern false fi final
  finally float fn for from func function global go goto if impl implements import in instanceof
  int interface is lambda let local long loop match mod mut new nil none nonlocal not null of or
  override package pass private protected pub public raise return self short signed static struct
  super switch template then this throw trait true try type typedef typeof union unsigned until use
  using var virtual void where while with yield`.split(/\s+/),
);
const SQL = new Set(
  `and as asc begin by case commit create delete desc distinct drop else end exists from group
  having in index insert into is join left limit not null on or order outer primary key references
  select set table then union unique update values view when where with`.split(/\s+/),
);

const STRING =
  String.raw`"""[^]*?(?:"""|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|\x60[^\x60]*\x60?`;
const REST = String.raw`\b(?:0x[\da-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\b|[A-Za-z_]\w*`;
const COMMENTS = {
  hash: String.raw`#[^\n]*`,
  dash: String.raw`--[^\n]*`,
  slash: String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`,
};

// Text nodes and spans of the code.
export function highlighted(code, language) {
  const name = language.toLowerCase();
  if (PLAIN.includes(name) || code.length > 50000) return [code];
  const style = HASH.includes(name) ? "hash" : DASH.includes(name) ? "dash" : "slash";
  const pattern = new RegExp(`(${COMMENTS[style]})|(${STRING})|${REST}`, "g");
  const out = [];
  let end = 0;
  for (const match of code.matchAll(pattern)) {
    const text = match[0];
    const isKeyword = name === "sql" ? SQL.has(text.toLowerCase())
      : KEYWORDS.has(/^(None|True|False)$/.test(text) ? text.toLowerCase() : text);
    const kind = match[1] ? "comment" : match[2] ? "string" : /^\d/.test(text) ? "number"
      : isKeyword ? "keyword" : null;
    if (kind === null) continue;
    out.push(code.slice(end, match.index), h("span", { class: `hl-${kind}` }, text));
    end = match.index + text.length;
  }
  out.push(code.slice(end));
  return out;
}
