// Shows Markdown as elements.
//
//   updateMarkdown(container, text)     // again and again while the text grows
//
// The lexer of marked (vendor/) splits the text into tokens, and each token becomes an element with
// createElement and text nodes. No HTML is ever parsed, so text of a model cannot become script:
// HTML in it is shown as text. Images become links, since loading one would tell its server.

import { copyButton, h } from "./dom.js";
import { highlighted } from "./highlight.js";
import { Lexer } from "./vendor/marked.esm.js";

const SCHEMES = ["http:", "https:", "mailto:"];
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

// Blocks whose source has not changed keep their elements, and so selection and focus.
export function updateMarkdown(container, text) {
  const tokens = Lexer.lex(text, { gfm: true, breaks: false }).filter((t) => t.type !== "space");
  const shown = container.blocks ?? [];
  let same = 0;
  while (same < shown.length && same < tokens.length && shown[same] === tokens[same].raw) same++;
  while (container.childNodes.length > same) container.lastChild.remove();
  container.append(...tokens.slice(same).map(block));
  container.blocks = tokens.map((token) => token.raw);
}

const blocks = (tokens) => tokens.filter((token) => token.type !== "space").map(block);

function block(token) {
  switch (token.type) {
    case "heading": // the page's own headings are h1 and h2
      return h(`h${Math.min(6, token.depth + 2)}`, {}, inlines(token.tokens));
    case "paragraph":
      return h("p", {}, inlines(token.tokens));
    case "text": // of a list item
      return h("span", {}, token.tokens ? inlines(token.tokens) : decoded(token.raw));
    case "code":
      return codeBlock(token.text, token.lang ?? "");
    case "blockquote":
      return h("blockquote", {}, blocks(token.tokens));
    case "list":
      return h(
        token.ordered ? "ol" : "ul",
        token.ordered && token.start !== 1 ? { start: token.start } : {},
        token.items.map(listItem),
      );
    case "table":
      return table(token);
    case "hr":
      return h("hr");
    case "def":
      return document.createComment("link");
    default: // html and whatever else
      return h("p", {}, token.raw.trim());
  }
}

function listItem(item) {
  const check = h("input", { type: "checkbox", disabled: true, checked: item.checked === true });
  const content = blocks(item.tokens);
  return h("li", item.task ? { class: "task" } : {}, item.task ? check : null, content);
}

function table(token) {
  const cell = (tag, part, i) => {
    const made = h(tag, tag === "th" ? { scope: "col" } : {}, inlines(part.tokens));
    if (token.align[i]) made.style.textAlign = token.align[i];
    return made;
  };
  const head = h("tr", {}, token.header.map((part, i) => cell("th", part, i)));
  const rows = token.rows.map((row) => h("tr", {}, row.map((part, i) => cell("td", part, i))));
  const made = h("table", {}, h("thead", {}, head), h("tbody", {}, rows));
  return h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Table" }, made);
}

function codeBlock(text, info) {
  const language = info.trim().split(/\s+/)[0].slice(0, 24);
  return h(
    "figure",
    { class: "code" },
    h(
      "figcaption",
      {},
      h("span", {}, language || "text"),
      copyButton(`Copy the ${language || "text"} code`, () => text),
    ),
    h("pre", { tabindex: 0 }, h("code", {}, highlighted(text, language))),
  );
}

const inlines = (tokens) => tokens.flatMap(inline);

function inline(token) {
  switch (token.type) {
    case "text":
      return token.tokens ? inlines(token.tokens) : [decoded(token.raw)];
    case "escape":
      return [token.raw.slice(1)];
    case "strong":
    case "em":
    case "del":
      return [h(token.type, {}, inlines(token.tokens))];
    case "codespan": // marked has escaped its text
      return [h("code", {}, decoded(token.text))];
    case "br":
      return [h("br")];
    case "link":
      return [link(token.href, inlines(token.tokens))];
    case "image":
      return [link(token.href, [`Image: ${decoded(token.text) || token.href}`])];
    default:
      return /^<br\s*\/?>$/i.test(token.raw) ? [h("br")] : [token.raw];
  }
}

function link(address, content) {
  let url = null;
  try {
    url = new URL(decoded(address));
  } catch {
    // relative or malformed: the page has nothing that a model could point to
  }
  if (url === null || !SCHEMES.includes(url.protocol)) return h("span", {}, content);
  return h("a", { href: url.href, target: "_blank", rel: "noopener noreferrer" }, content);
}

const ENTITY = /&(?:#(\d{1,7})|#x([\da-f]{1,6})|(\w{2,5}));/gi;

function decoded(text) {
  return text.replace(ENTITY, (all, decimal, hex, name) => {
    if (name) return NAMED[name] ?? all;
    const code = hex ? parseInt(hex, 16) : Number(decimal);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd";
  });
}
