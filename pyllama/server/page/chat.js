// The page of conversations: wires the parts together and runs the streams of answers.

import * as api from "./api.js";
import * as talk from "./conversation.js";
import { $, announce, h, iconButton, saveFile, short, toast } from "./dom.js";
import { MessageView } from "./message.js";
import { Monitor } from "./monitor.js";
import { hideAlternatives, readProbabilities } from "./probabilities.js";
import { SettingsDialog, requestFields } from "./settings.js";
import * as store from "./store.js";
import { startTheme } from "./theme.js";

const RETRY_MS = 1500; // while the server loads
const SAVE_MS = 2000; // of an answer that streams
const ASK_MS = 1000; // what an answer waits for
const WAITING = "Waiting for a slot";
const NEAR_END_PX = 80;
const HAS_ESCAPE = "dialog, .edit, .tokens, #conversations"; // close something else by it

const settings = store.loadSettings();
const streams = new Map(); // id of a conversation -> {controller, node, state}
const views = new Map(); // id of a message on the page -> MessageView
let conversations = [];
let current = talk.newConversation(settings.system);
let serverProps = null;

// --- the server ---------------------------------------------------------------------------------

const chosenModel = () => ($("models") ? $("models").value : null);
const defaults = () => serverProps?.default_generation_settings?.params ?? {};
const contextSize = () => serverProps?.default_generation_settings?.n_ctx ?? 0;

async function connect() {
  try {
    serverProps = await api.props(chosenModel());
  } catch (error) {
    serverProps = null;
    if (error.status === 401) return needKey();
    if (error.status === 400 && chosenModel()) return notLoaded();
    const loading = error.status === 503;
    $("model-name").textContent = loading ? "Loading the model" : "Not connected";
    const text = error.message.replace(/[^.]$/, "$&.");
    notice(loading || error.status === 0 ? `${text} Trying again.` : text);
    setTimeout(connect, RETRY_MS);
    return;
  }
  notice("");
  const name = serverProps.model_alias || serverProps.model_path || "model";
  $("model-name").textContent = name.split(/[\\/]/).at(-1).replace(/\.gguf$/, "");
  showContext();
  const { data } = await api.models().catch(() => ({ data: [] }));
  const isRouter = serverProps?.role === "router"; // its requests must name a model
  if (data.length > (isRouter ? 0 : 1) && !$("models")) {
    chooseModels(data.map((model) => model.id));
    if (isRouter) connect();
  }
}

// The chosen model is loaded by the next message; its settings are not known until then.
function notLoaded() {
  serverProps = {};
  notice("");
  showContext();
}

function chooseModels(ids) {
  const options = ids.map((id) => h("option", { value: id, selected: id === settings.model }, id));
  const changed = () => {
    settings.model = chosenModel();
    store.saveSettings(settings);
    showGraphLink();
    connect();
  };
  $("model").replaceChildren(
    h("select", { id: "models", "aria-label": "Model", change: changed }, options),
    h("span", { id: "model-name", hidden: true }),
  );
  showGraphLink();
}

function showGraphLink() {
  $("graph-link").href = `graph?${new URLSearchParams({ model: chosenModel() })}`;
}

function needKey() {
  $("model-name").textContent = "Not connected";
  const run = () => dialog.open({}, "api-key");
  notice("This server needs an API key.", { label: "Enter the key", run });
}

function notice(text, action = null) {
  $("notice").hidden = text === "";
  $("notice").replaceChildren(text);
  if (action) $("notice").append(h("button", { type: "button", click: action.run }, action.label));
}

// --- the list of conversations ------------------------------------------------------------------

function listConversations() {
  conversations.sort((a, b) => b.updated - a.updated);
  $("conversations").replaceChildren(
    ...conversations.map((conversation) => {
      const { id, title } = conversation;
      const here = id === current.id;
      const dot = h("i", { class: "dot", role: "img", "aria-label": "answering" });
      const attributes = { href: `#${id}`, "aria-current": here ? "page" : null };
      return h(
        "li",
        { class: here ? "here" : "", "data-id": id },
        h("a", attributes, title, streams.has(id) ? dot : null),
        h(
          "span",
          {},
          iconButton("pencil", `Rename “${title}”`, () => rename(conversation)),
          iconButton("download", `Export “${title}”`, () => exportThem([conversation], title)),
          iconButton("trash", `Delete “${title}”`, () => removeConversation(conversation)),
        ),
      );
    }),
  );
}

function rename(conversation) {
  const item = $("conversations").querySelector(`[data-id="${conversation.id}"]`);
  const field = h("input", { type: "text", "aria-label": "New name", maxlength: 120 });
  field.value = conversation.title;
  const finish = (keep) => {
    if (!field.isConnected) return;
    const title = field.value.trim();
    if (keep && title) {
      conversation.title = title;
      conversation.named = true;
      store.save(conversation);
      if (conversation === current) showTitle();
    }
    listConversations();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();
    finish(event.key === "Enter");
    $("conversations").querySelector(`[data-id="${conversation.id}"] a`)?.focus();
  });
  field.addEventListener("blur", () => finish(true));
  item.replaceChildren(field);
  field.select();
}

async function removeConversation(conversation) {
  streams.get(conversation.id)?.controller.abort();
  conversations = conversations.filter((one) => one !== conversation);
  await store.remove(conversation.id);
  if (conversation === current) startNew();
  else listConversations();
  const undo = async () => {
    conversations.push(conversation);
    await store.save(conversation);
    open(conversation);
  };
  toast(`Deleted “${conversation.title}”`, { label: "Undo", run: undo });
}

function exportThem(which, name) {
  const plain = name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation";
  saveFile(`${plain}.json`, talk.exportText(which));
}

async function importFile(file) {
  try {
    const made = talk.importText(await file.text());
    for (const conversation of made) await store.save(conversation);
    conversations.push(...made);
    if (made.length) open(made[0]);
    toast(`Imported ${made.length} conversation${made.length === 1 ? "" : "s"}`);
  } catch (error) {
    toast(`Nothing imported: ${error.message}`);
  }
}

function startNew() {
  current = talk.newConversation(settings.system);
  if (location.hash) history.pushState(null, "", location.pathname + location.search);
  showAll();
  $("prompt").focus();
}

function open(conversation) {
  current = conversation;
  if (location.hash !== `#${conversation.id}`) history.pushState(null, "", `#${conversation.id}`);
  showAll();
}

function openFromAddress() {
  const found = conversations.find((one) => one.id === location.hash.slice(1));
  if (found) open(found);
  else if (conversations.some((one) => one === current)) startNew();
}

// --- the messages -------------------------------------------------------------------------------

const actions = {
  versions: (node) => talk.siblings(current, node),
  isLast: (node) => current.leaf === node.id,
  show(id) {
    talk.show(current, id);
    store.save(current);
    showAll(false);
    views.get(id)?.element.querySelector(".versions button:not([disabled])")?.focus();
  },
  edit(node, text) {
    const { role, content, parent } = node;
    if (role === "user") {
      if (text.trim() === "" || busy()) return;
      generate(talk.addMessage(current, parent, { role, content: text }));
    } else if (text !== content) {
      talk.addMessage(current, parent, { role, content: text, model: node.model });
      store.save(current);
      showAll(false);
    } else showAll(false);
  },
  regenerate(node) {
    if (!busy()) generate(current.nodes[node.parent]);
  },
  continueAnswer(node) {
    if (!busy()) generate(null, node);
  },
  retry(node) {
    if (busy()) return;
    const parent = current.nodes[node.parent];
    if (node.content === "") delete current.nodes[node.id]; // else it stays as a version
    generate(parent);
  },
  answerTools(node, results) {
    let last = node;
    node.tool_calls.forEach((call, i) => {
      const result = { role: "tool", tool_call_id: call.id, content: results[i] };
      last = talk.addMessage(current, last.id, result);
    });
    generate(last);
  },
};

const busy = () => streams.has(current.id);

function showTitle() {
  $("title").textContent = current.title;
  document.title = current.leaf === null ? "pyllama" : `${current.title} · pyllama`;
}

function showAll(toEnd = true) {
  hideAlternatives();
  showTitle();
  listConversations();
  views.clear();
  const path = talk.shownPath(current);
  $("welcome").hidden = path.length > 0;
  $("messages").replaceChildren(
    ...path.map((node) => {
      const view = new MessageView(node, actions);
      views.set(node.id, view);
      return view.element;
    }),
  );
  const stream = streams.get(current.id);
  views.get(stream?.node.id)?.update({ streaming: true, progress: stream.progress });
  showControls();
  showContext();
  if (toEnd) scrollToEnd();
  closeSidebar(false);
}

function showControls() {
  $("send").hidden = busy();
  $("stop").hidden = !busy();
  if (!busy()) $("rate").textContent = "";
}

function showContext() {
  const { timings } = talk.shownPath(current).findLast((node) => node.timings) ?? {};
  const size = contextSize();
  $("context").hidden = !size || !timings;
  if ($("context").hidden) return;
  const used = (timings.cache_n ?? 0) + timings.prompt_n + timings.predicted_n;
  const meter = $("context");
  meter.setAttribute("aria-valuemax", size);
  meter.setAttribute("aria-valuenow", used);
  meter.setAttribute("aria-valuetext", `${used} of ${size} tokens`);
  meter.title = `Context: ${used} of ${size} tokens`;
  meter.firstElementChild.style.setProperty("--share", Math.min(1, used / size));
  meter.lastElementChild.textContent = `${short(used)} / ${short(size)}`;
}

const scroller = $("scroll");
const nearEnd = () =>
  scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR_END_PX;
function scrollToEnd() {
  scroller.scrollTop = scroller.scrollHeight;
}

// --- answers ------------------------------------------------------------------------------------

// Streams the answer that follows a message of the current conversation, or more of an answer.
async function generate(parent, begun = null) {
  const conversation = current;
  const body = {
    messages: talk.toMessages(conversation, talk.pathTo(conversation, (begun ?? parent).id)),
    stream: true,
    stream_options: { include_usage: true },
    timings_per_token: true,
    return_progress: true,
    ...requestFields(settings),
  };
  if (chosenModel()) body.model = chosenModel();
  const node = begun ?? talk.addMessage(conversation, parent.id, { role: "assistant" });
  delete node.finish;
  delete node.error;
  const stream = { controller: new AbortController(), node, progress: WAITING };
  streams.set(conversation.id, stream);
  if (!conversations.includes(conversation)) {
    conversations.push(conversation);
    history.replaceState(null, "", `#${conversation.id}`);
  }
  store.save(conversation);
  showAll();
  announce("Answering");
  const reader = new Announcer(node.content.length);
  let scheduled = false;
  let saved = performance.now();
  const refresh = () => {
    scheduled = false;
    if (!streams.has(conversation.id)) return;
    const follow = nearEnd();
    const began = performance.now();
    views.get(node.id)?.update({ streaming: true, progress: stream.progress });
    stream.cost = performance.now() - began;
    if (conversation === current) {
      showRate(node);
      showContext();
      reader.read(node.content);
      if (follow) scrollToEnd();
      showJump();
    }
    if (performance.now() - saved > SAVE_MS) {
      saved = performance.now();
      store.save(conversation);
    }
  };
  const asking = setInterval(() => askWhy(stream, refresh), ASK_MS);
  try {
    for await (const chunk of api.streamChat(body, stream.controller.signal)) {
      clearInterval(asking);
      readChunk(node, stream, chunk);
      if (scheduled) continue;
      scheduled = true; // a long text is shown less often: rendering takes at most a fifth
      setTimeout(() => requestAnimationFrame(refresh), Math.min(500, 4 * (stream.cost ?? 0)));
    }
  } catch (error) {
    if (error.name === "AbortError") node.finish = "stopped";
    else node.error = error.message;
    if (error.status === 401) needKey();
  }
  clearInterval(asking);
  streams.delete(conversation.id);
  if (!serverProps?.default_generation_settings) connect(); // the message loaded the model
  if (stream.thinking) node.thought_ms ??= performance.now() - stream.thinking;
  if (conversations.includes(conversation)) await store.save(conversation);
  if (conversation !== current) return listConversations();
  const follow = nearEnd();
  views.get(node.id)?.update({});
  listConversations();
  showControls();
  showContext();
  reader.end(node);
  if (follow) scrollToEnd();
}

// Tells what an answer waits for that has not begun: a fresh server may still compile.
async function askWhy(stream, refresh) {
  const { compiling } = await api.health().catch(() => ({}));
  if (stream.progress !== WAITING && !stream.compiling) return; // it has begun meanwhile
  stream.compiling = compiling !== undefined;
  stream.progress = compiling ? compilingText(compiling) : WAITING;
  refresh();
}

function compilingText({ n, of, elapsed_s: elapsed, expected_s: expected }) {
  const about = expected ? ` of about ${Math.round(expected)} s` : "";
  return `Compiling kernels, ${n} of ${of} (${Math.round(elapsed)} s${about})`;
}

function readChunk(node, stream, chunk) {
  stream.compiling = false;

  if (chunk.timings) node.timings = chunk.timings;
  if (chunk.model && !node.model) node.model = chunk.model;
  const read = chunk.prompt_progress;
  if (read) {
    const share = read.total ? Math.round((100 * read.processed) / read.total) : 0;
    stream.progress = share < 100 ? `Reading the prompt, ${share} %` : "";
  }
  const choice = chunk.choices?.[0];
  if (choice === undefined) return;
  const { delta = {} } = choice;
  if (delta.reasoning_content) {
    stream.progress = "";
    stream.thinking ??= performance.now();
    node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
  }
  if (delta.content) {
    stream.progress = "";
    if (stream.thinking) node.thought_ms ??= performance.now() - stream.thinking;
    node.content += delta.content;
  }
  for (const part of delta.tool_calls ?? []) readToolCall(node, stream, part);
  if (choice.logprobs?.content) {
    (node.probabilities ??= []).push(...readProbabilities(choice.logprobs.content));
  }
  if (choice.finish_reason) node.finish = choice.finish_reason;
}

function readToolCall(node, stream, part) {
  stream.progress = "";
  node.tool_calls ??= [];
  const empty = { id: "", type: "function", function: { name: "", arguments: "" } };
  const call = (node.tool_calls[part.index ?? 0] ??= empty);
  if (part.id) call.id = part.id;
  call.function.name += part.function?.name ?? "";
  call.function.arguments += part.function?.arguments ?? "";
}

function showRate({ timings }) {
  if (!timings) return;
  const { predicted_n: n, predicted_per_second: rate, prompt_per_second: read } = timings;
  $("rate").textContent = n > 1 ? `${rate.toFixed(rate < 10 ? 1 : 0)} tok/s · ${n} tokens`
    : read > 0 ? `prompt at ${read.toFixed(0)} tok/s` : "";
}

// Gives screen readers whole paragraphs, as they are finished.
class Announcer {
  constructor(said) {
    this.said = said; // characters
  }
  read(content) {
    const end = content.lastIndexOf("\n\n");
    if (end <= this.said) return;
    announce(content.slice(this.said, end));
    this.said = end;
  }
  end(node) {
    if (node.content.length > this.said) announce(node.content.slice(this.said));
    if (node.error) announce(`Failed: ${node.error}`);
    else announce(node.finish === "stopped" ? "Stopped" : "End of the answer");
  }
}

// --- the composer, the sidebar, keys ------------------------------------------------------------

const prompt = $("prompt");

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight, innerHeight * 0.4)}px`;
}

function send() {
  const content = prompt.value;
  if (content.trim() === "" || busy()) return;
  prompt.value = "";
  fitPrompt();
  generate(talk.addMessage(current, current.leaf, { role: "user", content }));
}

const stop = () => streams.get(current.id)?.controller.abort();

const narrow = matchMedia("(max-width: 54rem)");
function closeSidebar(focus = true) {
  if (!narrow.matches) return;
  setSidebar(false);
  if (focus) $("open-sidebar").focus();
}

function setSidebar(open) {
  document.body.classList.toggle("sidebar-open", open);
  document.body.classList.toggle("sidebar-closed", !open);
  $("open-sidebar").setAttribute("aria-expanded", open);
  $("sidebar").inert = !open;
  if (narrow.matches && open) $("new-chat").focus();
}

function showJump() {
  $("to-end").hidden = nearEnd();
}

const dialog = new SettingsDialog(settings, {
  conversation: () => current,
  systemChanged: () => conversations.includes(current) && store.save(current),
  keyChanged: connect,
});

function bind() {
  const clicks = {
    "new-chat": startNew,
    stop,
    "open-sidebar": () => setSidebar(!document.body.classList.contains("sidebar-open")),
    "close-sidebar": () => closeSidebar(),
    shade: () => closeSidebar(),
    "open-settings": () => dialog.open(defaults()),
    "to-end": scrollToEnd,
    import: () => $("import-file").click(),
    "export-all": () => exportThem(conversations, "pyllama-conversations"),
  };
  for (const [id, click] of Object.entries(clicks)) $(id).addEventListener("click", click);
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  prompt.addEventListener("input", fitPrompt);
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "ArrowUp" && prompt.value === "" && !busy()) {
      const last = talk.shownPath(current).findLast((node) => node.role === "user");
      if (last === undefined) return;
      event.preventDefault();
      views.get(last.id).edit();
    }
  });
  scroller.addEventListener("scroll", () => {
    hideAlternatives();
    showJump();
  });
  $("import-file").addEventListener("change", (event) => {
    if (event.target.files[0]) importFile(event.target.files[0]);
    event.target.value = "";
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && narrow.matches && !$("sidebar").inert) closeSidebar();
    else if (event.key === "Escape" && !event.target.closest?.(HAS_ESCAPE)) stop();
    if (event.key === "O" && event.shiftKey && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      startNew();
    }
  });
  addEventListener("popstate", openFromAddress);
  narrow.addEventListener("change", () => setSidebar(!narrow.matches));
}

async function start() {
  startTheme();
  setSidebar(!narrow.matches);
  bind();
  new Monitor(chosenModel);
  connect();
  try {
    conversations = await store.loadAll();
  } catch {
    toast("This browser keeps no data: conversations end with the page.");
  }
  const asked = conversations.find((one) => one.id === location.hash.slice(1));
  if (asked) current = asked;
  store.onOtherTab(async (id) => {
    if (streams.size) return; // this tab's objects are newer
    conversations = await store.loadAll();
    const found = conversations.find((one) => one.id === current.id);
    if (found) current = found;
    if (id === current.id) showAll(false);
    else listConversations();
  });
  showAll();
  if (!narrow.matches) prompt.focus();
  document.documentElement.dataset.ready = "1";
}

start();
