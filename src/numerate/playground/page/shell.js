// The frame of the tabs: navigation, state, address, and requests to the server.
//
// A tab is a module that exports
//
//   export const tab = {
//     name: "digit",                 // POST /api/digit, #digit in the address
//     title: "One digit",            // in the row of tabs
//     mount(root, page) { .. },      // build the elements once; `root` is an empty <section>
//     show(answer, state, root) {},  // draw an answer; also called when the width changes
//   };
//
// `page` is what a tab's controls use:
//
//   page.state              the state now; its defaults are those of the tab's request model in Python
//   page.set({field: 1})    change the state: the server is asked, `show` is called, the address follows
//   page.watch(update)      call update(state) now, and whenever the state changes (also by the address)
//   page.say("text")        show a message; page.say("") removes it
//   page.fail("text")       show an error, and hide the elements of class "result" until the next answer
//
// One request at a time: intermediate states are skipped, and the last one is always shown. After `show`, the section
// gets a `shown` event. To add a tab: import it here and add it to TABS, in the order of numerate/playground/tabs.py.

import { tab as answer } from "./tabs/answer.js";
import { tab as digit } from "./tabs/digit.js";
import { tab as label } from "./tabs/label.js";
import { tab as landscape } from "./tabs/landscape.js";
import { tab as number } from "./tabs/number.js";

const TABS = [answer, digit, number, label, landscape];

const bar = document.getElementById("tabs");
const main = document.getElementById("main");
const pages = new Map();
let writing = 0; // debounced: browsers refuse hundreds of changes within seconds

function encode(value, first) {
  const text = typeof value === "string" && typeof first === "string" ? value : JSON.stringify(value);
  return encodeURIComponent(text).replaceAll("%2C", ",");
}

function decode(text, first) {
  if (typeof first === "string") return text;
  try { return JSON.parse(text); } catch { return text; }
}

const kind = (value) => (Array.isArray(value) ? "array" : value === null ? "null" : typeof value);

function createPage(tab, defaults) {
  const root = document.createElement("section");
  root.id = `tab-${tab.name}`;
  root.hidden = true;
  const message = document.createElement("p");
  message.className = "message";
  message.setAttribute("role", "alert");
  message.hidden = true;
  const content = document.createElement("div");
  root.append(message, content);
  main.append(root);

  const link = document.createElement("a");
  link.textContent = tab.title;
  link.href = `#${tab.name}`;
  bar.append(link);

  const watchers = [];
  let mounted = false, asking = false, stale = false, last = null, unread = "";

  const page = {
    state: { ...defaults },
    root, link,
    set(changes) {
      page.state = { ...page.state, ...changes };
      unread = "";
      page.address();
      clearTimeout(writing);
      writing = setTimeout(() => history.replaceState(null, "", link.href), 150);
      page.changed();
    },
    watch(update) {
      watchers.push(update);
      update(page.state);
    },
    say(text) {
      message.textContent = text;
      message.hidden = !text;
    },
    fail(text) {
      page.say(text);
      root.classList.add("failed");
      last = null;
    },
    address() {
      const other = Object.keys(defaults).filter((field) => JSON.stringify(page.state[field]) !== JSON.stringify(defaults[field]));
      const query = other.map((field) => `${field}=${encode(page.state[field], defaults[field])}`).join("&");
      link.href = `#${tab.name}${query ? `?${query}` : ""}`;
    },
    open(query) {
      page.state = { ...defaults };
      unread = "";
      for (const [field, text] of new URLSearchParams(query)) {
        const first = defaults[field], value = decode(text, first);
        if (Object.hasOwn(defaults, field) && (first === null || kind(value) === kind(first))) page.state[field] = value;
        else unread = `The address has an invalid field: ${field}=${text}.`;
      }
      page.address();
      if (!mounted) {
        mounted = true;
        tab.mount(content, page);
      }
      page.changed();
    },
    changed() {
      for (const update of watchers) update(page.state);
      page.ask();
    },
    async ask() {
      if (asking) { stale = true; return; }
      asking = true;
      root.setAttribute("aria-busy", "true");
      do {
        stale = false;
        const state = page.state;
        try {
          const headers = { "content-type": "application/json" };
          const response = await fetch(`/api/${tab.name}`, { method: "POST", headers, body: JSON.stringify(state) });
          const answer = await response.json();
          if (response.ok) {
            page.say(unread);
            root.classList.remove("failed");
            last = [answer, state];
            page.show();
          } else {
            page.fail(answer.error);
          }
        } catch (error) {
          console.warn(error);
          page.fail(error instanceof TypeError && /fetch/i.test(error.message)
            ? "No answer from the server. Is `numerate playground` still running?" : String(error));
        }
      } while (stale);
      asking = false;
      root.setAttribute("aria-busy", "false");
      root.dataset.settled = String(Number(root.dataset.settled ?? 0) + 1);
    },
    show() {
      if (!last || root.hidden) return;
      tab.show(...last, content);
      root.dispatchEvent(new Event("shown"));
    },
  };
  return page;
}

function navigate() {
  clearTimeout(writing);
  const [name, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  const chosen = pages.has(name) ? name : TABS[0].name;
  for (const [other, page] of pages) {
    page.root.hidden = other !== chosen;
    if (other === chosen) page.link.setAttribute("aria-current", "page");
    else page.link.removeAttribute("aria-current");
  }
  document.title = `${TABS.find((tab) => tab.name === chosen).title} · numerate playground`;
  pages.get(chosen).open(query);
}

const defaults = await (await fetch("/api")).json();
for (const tab of TABS) pages.set(tab.name, createPage(tab, defaults[tab.name]));
document.getElementById("loading").remove();
addEventListener("hashchange", navigate);
navigate();

let width = main.clientWidth;
new ResizeObserver(() => {
  if (main.clientWidth === width) return;
  width = main.clientWidth;
  for (const page of pages.values()) page.show();
}).observe(main);
