// Keeps conversations (IndexedDB) and settings (localStorage) in this browser.

import { toast } from "./dom.js";

const OTHER_TABS = new BroadcastChannel("pyllama-conversations");

const wait = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

let opened = null;
function open() {
  const request = indexedDB.open("pyllama", 1);
  request.onupgradeneeded = () =>
    request.result.createObjectStore("conversations", { keyPath: "id" });
  return wait(request);
}

async function objects(mode) {
  opened ??= open();
  return (await opened).transaction("conversations", mode).objectStore("conversations");
}

// All conversations, the last changed first.
export async function loadAll() {
  const found = await wait((await objects("readonly")).getAll());
  return found.sort((a, b) => b.updated - a.updated);
}

export const save = (conversation) =>
  change(conversation.id, (all) => all.put(conversation));
export const remove = (id) => change(id, (all) => all.delete(id));

// Never rejects: the page goes on with what it has in memory.
async function change(id, request) {
  try {
    await wait(request(await objects("readwrite")));
    OTHER_TABS.postMessage(id);
  } catch (error) {
    toast(`Not saved in this browser: ${error.message}`);
  }
}

export function onOtherTab(changed) {
  OTHER_TABS.addEventListener("message", (event) => changed(event.data));
}

const DEFAULTS = {
  samplers: {}, // fields of a request that differ from the server's
  extra: "", // JSON object of further fields
  tools: "", // JSON array of OpenAI's tools
  system: "", // of new conversations
  probabilities: false,
  alternatives: 5,
  model: null,
};

export function loadSettings() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem("settings") ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export const saveSettings = (settings) =>
  localStorage.setItem("settings", JSON.stringify(settings));
