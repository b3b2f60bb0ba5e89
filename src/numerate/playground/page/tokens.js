// Tokens, places, percentages and the list of tokenizers, for all tabs with tokens.

import { element, fill } from "./controls.js";
import { show as written } from "./draw.js";

const style = element("link", { rel: "stylesheet", href: "/page/tokens.css" });
document.head.append(style);

export const END = "■";

// A token as shown: a space as ␣, the end of a number as ■.
export const token = (text) => (text === "end" ? END : text.replaceAll(" ", "␣"));

// A share as a percentage with three digits and no-break spaces.
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

// List the tokenizers of an answer; one that is not installed is disabled and shows the reason.
export function listTokenizers(select, listed, state) {
  fill(select, listed.map(({ name, title, reason }) => ({ value: name, shown: reason ? `${title}: ${reason}` : title, disabled: Boolean(reason) })), state.tokenizer);
}
