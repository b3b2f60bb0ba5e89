// What the tabs of complete numbers and of labels share: how tokenizers are listed, and how tokens and places are written.

import { element, fill } from "./controls.js";
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

// The tokenizers as they come with an answer: those that are not installed are listed with the reason, and cannot be chosen.
export function listTokenizers(select, listed, state) {
  fill(select, listed.map(({ name, title, reason }) => ({ value: name, shown: reason ? `${title}: ${reason}` : title, disabled: Boolean(reason) })), state.tokenizer);
}
