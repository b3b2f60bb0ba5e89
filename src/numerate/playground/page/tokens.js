// What the tabs of whole numbers and of labels share: a choice of tokenizers, and how tokens and places are written.

import { element } from "./controls.js";
import { show as written } from "./draw.js";

const style = element("link", { rel: "stylesheet", href: "/page/tokens.css" });
document.head.append(style);

export const END = "■";

// A token as it is shown: a space as ␣, the end of a number as ■.
export const token = (text) => (text === "end" ? END : text.replaceAll(" ", "␣"));

// A share in per cent, with three digits; the spaces do not break.
export function percent(share) {
  if (share === null) return "–";
  return share > 0 && share < 1e-5 ? "<\u00a00.001\u00a0%" : `${written(100 * share, 3)}\u00a0%`;
}

const raised = (exponent) => String(exponent).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);

// The place of a token: 100, 0.01, 10⁻⁷; nothing for a token without one.
export function place(exponent) {
  if (exponent === null) return "";
  return Math.abs(exponent) > 4 ? `10${raised(exponent)}` : exponent < 0 ? `0.${"0".repeat(-exponent - 1)}1` : `1${"0".repeat(exponent)}`;
}

// A select whose options come with the answers: those that are not installed are listed with the reason, and cannot be chosen.
export function tokenizers(root, page) {
  const input = element("select", { name: "tokenizer" });
  const made = element("label", { class: "control" }, element("span", { class: "name" }, "tokenizer"), input);
  root.append(made);
  page.watch((state) => {
    if (input.dataset.listed === undefined) input.replaceChildren(element("option", { value: state.tokenizer }, state.tokenizer));
    input.value = state.tokenizer;
  });
  input.addEventListener("change", () => page.set({ tokenizer: input.value }));
  return made;
}

export function listTokenizers(root, listed, state) {
  const input = root.querySelector("select[name=tokenizer]");
  const told = JSON.stringify(listed);
  if (input.dataset.listed === told) return; // an open list would close
  input.dataset.listed = told;
  input.replaceChildren(...listed.map(({ name, title, reason }) =>
    element("option", { value: name, disabled: Boolean(reason) }, reason ? `${title}: ${reason}` : title)));
  input.value = state.tokenizer;
}
