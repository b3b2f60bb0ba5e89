// Your tokenizer: what `numerate inspect` says about a packaged tokenizer, or about a tokenizer.json from this machine.

import { button, element } from "../controls.js";
import { fill, list } from "../lists.js";

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const power = (exponent) => `10${String(exponent).replace("-", "⁻").replace(/\d/g, (digit) => SUPERSCRIPTS[digit])}`;
const lines = (value) => value.split("\n").map((line) => line.trim()).filter((line) => line);

let page = null, parts = null;
let file = null; // the one that is shown instead of a packaged tokenizer; it stays in the browser
let uploads = 0;

export const tab = {
  name: "tokenizer",
  title: "Your tokenizer",

  mount(root, given) {
    page = given;
    root.append(element("p", { class: "lead" }, "A loss sees numbers as the tokenizer splits them. Choose a tokenizer, or a tokenizer.json of yours: how it splits numbers, "
      + "which of them are read back, and which losses fit it. The file is read in memory, and not kept."));
    const controls = element("div", { class: "controls" });
    const select = list(controls, { label: "tokenizer", onChange: (value) => { forget(); page.set({ name: value }); } });
    const input = element("input", { type: "file", accept: ".json,application/json", name: "file" });
    const chosen = element("span", { class: "file" });
    controls.append(element("label", { class: "control upload" }, element("span", { class: "name" }, "or your tokenizer.json"), input));
    const close = button(controls, { label: "Close the file", onClick: () => { forget(); page.set({}); } });
    controls.append(chosen);
    input.addEventListener("change", () => { if (input.files[0]) open(input.files[0]); });
    root.addEventListener("dragover", (event) => event.preventDefault());
    root.addEventListener("drop", (event) => { event.preventDefault(); if (event.dataTransfer.files[0]) open(event.dataTransfer.files[0]); });
    const texts = element("textarea", { name: "texts", rows: 4, spellcheck: "false", maxlength: 1600 });
    texts.addEventListener("input", () => { if (lines(texts.value).length) page.set({ texts: lines(texts.value) }); });
    page.watch((state) => { if (document.activeElement !== texts) texts.value = state.texts.join("\n"); });
    parts = { select, input, close, chosen, style: element("p", { class: "answer result" }, "The tokenizer is being read."), facts: element("dl", { class: "facts" }),
      readings: element("div", { class: "readings result" }), advice: element("tbody") };
    const heads = ["loss", "fit", "compares", "note"].map((head) => element("th", { class: "left-aligned" }, head));
    root.append(controls, parts.style,
      element("article", { class: "two" },
        element("div", {}, element("h2", {}, "How numbers are split"),
          element("label", { class: "texts" }, element("span", { class: "name" }, "texts, one per line"), texts), parts.readings),
        element("div", { class: "result" }, element("h2", {}, "The vocabulary"), parts.facts)),
      element("h2", { class: "result" }, "Which losses fit"),
      element("div", { class: "scroll result" }, element("table", { class: "advice" }, element("thead", {}, element("tr", {}, ...heads)), parts.advice)));
    forget();
  },

  show(answer, state) {
    fill(parts.select, answer.choices, answer.name);
    if (file) send(state); else draw(answer);
  },
};

function forget() {
  file = null;
  uploads += 1;
  parts.input.value = "";
  parts.close.hidden = true;
  parts.chosen.textContent = "";
}

function open(given) {
  file = { given, sent: null };
  parts.close.hidden = false;
  parts.chosen.textContent = `${given.name}: being read`;
  send(page.state);
}

const ascii = (text) => text.replace(/[\u007f-\uffff]/g, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);

// Send the file with the texts, unless that was done; the last one that was sent is shown.
async function send(state) {
  const texts = ascii(JSON.stringify(state.texts));
  if (file.sent === texts) return;
  file.sent = texts;
  const mine = uploads += 1, { given } = file;
  let problem = "";
  try {
    const headers = { "content-type": "application/octet-stream", "x-texts": texts };
    const response = await fetch("/api/tokenizer/upload", { method: "POST", headers, body: given });
    const answer = await response.json();
    if (mine !== uploads) return;
    if (response.ok) draw(answer); else problem = answer.error;
  } catch (error) {
    console.warn(error);
    problem = "The file could not be sent: it may have changed since it was chosen, or the server has stopped.";
  }
  if (mine !== uploads) return;
  if (problem) page.fail(`${given.name}: ${problem}`);
  else page.answered();
  parts.chosen.textContent = problem ? `${given.name} could not be read` : given.name;
  if (problem) { file = null; parts.input.value = ""; parts.close.hidden = true; }
}

function draw(answer) {
  parts.style.textContent = `${answer.name}: ${answer.style}`;
  parts.facts.replaceChildren(...Object.entries(answer.facts).flatMap(([name, fact]) => [element("dt", {}, name), element("dd", {}, fact)]));
  parts.readings.replaceChildren(...answer.readings.map(reading));
  parts.advice.replaceChildren(...answer.advice.map(({ loss, level, suitability, note }) => element("tr", { "data-loss": loss },
    element("td", {}, loss), element("td", { class: `left-aligned fit-${suitability}` }, suitability), element("td", { class: "left-aligned" }, `${level}s`),
    element("td", { class: "left-aligned" }, note))));
}

function reading({ text, thousands, tokens, exponents, more, numbers }) {
  const chips = tokens.map((token, index) => element("span", { class: exponents[index] === null ? "piece" : "piece numeric" }, element("b", {}, token),
    element("small", {}, exponents[index] === null ? "" : power(exponents[index]))));
  const said = numbers.length ? `read as ${numbers.join(", ")}` : "no number is read";
  return element("div", { class: "reading" }, element("div", { class: "text" }, text, ...(thousands ? [element("small", {}, " with thousands=True")] : [])),
    element("div", { class: "pieces" }, ...chips, ...(more ? [` and ${more} more`] : [])), element("div", { class: "note" }, said));
}
