// A conversation: a tree of messages. Editing or regenerating adds a sibling, so nothing is lost.
//
//   {id, title, named, created, updated, system, leaf, nodes: {id: node}}
//   node: {id, parent, role, content, time, ...}; leaf: the last message of the path that is shown

const ROLES = ["user", "assistant", "tool"];
const TITLE_LENGTH = 60;

// crypto.randomUUID exists only over HTTPS and on localhost.
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");
}

export function newConversation(system = "") {
  const now = Date.now();
  return {
    id: newId(), title: "New chat", named: false, created: now, updated: now, system, leaf: null,
    nodes: {},
  };
}

// Adds a message after `parent` and shows its path.
export function addMessage(conversation, parent, message) {
  const node = { id: newId(), parent, time: Date.now(), content: "", ...message };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  conversation.updated = node.time;
  if (!conversation.named && parent === null && node.role === "user") {
    const line = node.content.trim().split("\n")[0];
    conversation.title =
      line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1).trimEnd()}…` : line;
  }
  return node;
}

// The messages from the first to `id`.
export function pathTo(conversation, id) {
  const path = [];
  const { nodes } = conversation;
  for (let node = nodes[id]; node !== undefined; node = nodes[node.parent]) path.unshift(node);
  return path;
}

export const shownPath = (conversation) => pathTo(conversation, conversation.leaf);

const childrenOf = (conversation, parent) =>
  Object.values(conversation.nodes)
    .filter((node) => node.parent === parent)
    .sort((a, b) => a.time - b.time);

export const siblings = (conversation, node) => childrenOf(conversation, node.parent);

// Shows the path through `id`, on to the newest message after it.
export function show(conversation, id) {
  for (;;) {
    const next = childrenOf(conversation, id).at(-1);
    if (next === undefined) break;
    id = next.id;
  }
  conversation.leaf = id;
}

// The messages of a request, as OpenAI's API has them.
export function toMessages(conversation, path) {
  const messages = path
    .filter((node) => node.content || node.tool_calls || node.role === "tool")
    .map((node) => {
      const message = { role: node.role, content: node.content };
      if (node.tool_calls) message.tool_calls = node.tool_calls;
      if (node.tool_call_id) message.tool_call_id = node.tool_call_id;
      return message;
    });
  const system = conversation.system.trim();
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

export const exportText = (conversations) =>
  JSON.stringify({ format: "pyllama-conversations", version: 1, conversations }, null, 1);

const string = (value, otherwise = "") => (typeof value === "string" ? value : otherwise);
const finite = (value, otherwise) => (Number.isFinite(value) ? value : otherwise);

// The conversations of an exported file, under new ids. Only fields of the right type are read.
export function importText(text) {
  const data = JSON.parse(text);
  if (data?.format !== "pyllama-conversations" || !Array.isArray(data.conversations)) {
    throw new Error("this is not a file of exported conversations");
  }
  return data.conversations.map((given) => {
    const made = newConversation(string(given.system));
    made.title = string(given.title, "Imported") || "Imported";
    made.named = given.named === true;
    made.created = finite(given.created, made.created);
    made.updated = finite(given.updated, made.updated);
    const entries = Object.values(given.nodes ?? {}).filter((node) => ROLES.includes(node?.role));
    const ids = new Map(entries.map((node) => [node.id, newId()]));
    for (const node of entries) made.nodes[ids.get(node.id)] = importedNode(node, ids);
    for (const node of Object.values(made.nodes)) {
      const seen = new Set(); // a cycle of parents would never end
      for (let at = node; at?.parent; at = made.nodes[at.parent]) {
        if (seen.has(at.id)) throw new Error("a message is its own ancestor");
        seen.add(at.id);
      }
    }
    const last = Object.values(made.nodes).sort((a, b) => a.time - b.time).at(-1);
    made.leaf = ids.get(given.leaf) ?? last?.id ?? null;
    return made;
  });
}

function importedNode(given, ids) {
  const node = {
    id: ids.get(given.id), parent: ids.get(given.parent) ?? null, role: given.role,
    content: string(given.content), time: finite(given.time, Date.now()),
  };
  for (const name of ["reasoning", "finish", "error", "tool_call_id", "model"]) {
    if (typeof given[name] === "string") node[name] = given[name];
  }
  if (Number.isFinite(given.thought_ms)) node.thought_ms = given.thought_ms;
  if (given.timings && typeof given.timings === "object") {
    node.timings = Object.fromEntries(
      Object.entries(given.timings).filter(([, value]) => Number.isFinite(value)),
    );
  }
  if (Array.isArray(given.tool_calls)) {
    node.tool_calls = given.tool_calls.map((call) => ({
      id: string(call?.id), type: "function",
      function: {
        name: string(call?.function?.name), arguments: string(call?.function?.arguments),
      },
    }));
  }
  const isToken = ([token, p] = []) => typeof token === "string" && Number.isFinite(p);
  if (Array.isArray(given.probabilities)) {
    node.probabilities = given.probabilities
      .filter((entry) => Array.isArray(entry) && isToken(entry))
      .map(([token, p, top]) => [token, p, Array.isArray(top) ? top.filter(isToken) : []]);
  }
  return node;
}
