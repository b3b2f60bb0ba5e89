// A tree of tokens as SVG: from left to right where there is room, indented as a list on a narrow page.
//
//   tree(root, branch, {given, drawn})   given: probabilities given the prefix; drawn: with the frequencies of samples

import { picture, shape } from "./draw.js";
import { END, percent, token } from "./tokens.js";

const NARROW = 640, LINE = 27, DRAWN = 39, INDENT = 16, MOST = 12;
const FAMILY = "system-ui, 'Segoe UI', Arial, sans-serif"; // as in style.css
const canvas = document.createElement("canvas").getContext("2d");

function measure(text, font) {
  canvas.font = `${font} ${FAMILY}`;
  return Math.ceil(canvas.measureText(text).width);
}

function name({ tokens, longer, others, cut }, depth) {
  if (others) return `${others} ${others === 1 ? "other" : "others"}`;
  let shown = tokens.map(token).join("|");
  if (shown.length > MOST || longer) shown = `${shown.slice(0, shown.lastIndexOf("|", MOST))}…`;
  return `${shown}${cut ? (shown ? " …" : "…") : ""}` || (depth ? END : "start");
}

export function tree(root, top, { given = false, drawn = false } = {}) {
  const narrow = root.clientWidth < NARROW, row = drawn && !narrow ? DRAWN : LINE, nodes = [];
  const numbers = (branch) => [given ? branch.share : branch.probability, given ? branch.frequency_share : branch.frequency];
  let leaves = 0;
  const place = (branch, depth, parent) => {
    const node = { branch, depth, parent, text: name(branch, depth), order: nodes.length, lines: [] };
    node.letters = measure(node.text, "700 13px");
    if (depth) node.lines = [percent(numbers(branch)[0]), ...(drawn ? [`sampled ${percent(numbers(branch)[1])}`] : [])];
    node.wide = Math.max(node.letters + 8 + measure(node.lines[0] ?? "", "12px"), measure(node.lines[1] ?? "", "12px"));
    nodes.push(node);
    const below = branch.branches.map((child) => place(child, depth + 1, node));
    node.leaf = below.length ? (below[0].leaf + below[below.length - 1].leaf) / 2 : leaves++;
    return node;
  };
  place(top, 0, null);
  const told = nodes.slice(1).map(({ depth, text, lines }) => `level ${depth} ${text}: ${lines.join(", ")}`).join("; ");
  const height = (narrow ? nodes.length : leaves) * row + 8;
  const [svg, width] = picture(root, height, "Tree of tokens", told || `certain: ${nodes[0].text}`);
  const across = narrow ? (node) => 4 + node.depth * INDENT : columns(nodes, width);
  const down = (node) => 4 + ((narrow ? node.order : node.leaf) + 0.5) * row;
  for (const node of nodes) {
    if (!node.parent) continue;
    const { branch, parent } = node, x = across(node) - 3, y = down(node);
    const from = narrow ? across(parent) + 5 : across(parent) + parent.wide + 4;
    const start = narrow ? down(parent) + 8 : down(parent), middle = (from + x) / 2;
    const line = narrow ? `M${from} ${start}V${y}H${x}` : `M${from} ${start}C${middle} ${start} ${middle} ${y} ${x} ${y}`;
    const thick = Math.max(1, (narrow ? 5 : 14) * branch.probability);
    shape(svg, "path", { d: line }, { fill: "none", stroke: branch.others || branch.unsearched ? "var(--edge)" : "var(--c1)", "stroke-width": thick, opacity: 0.6 });
  }
  for (const node of nodes) write(svg, node, across(node), down(node), narrow ? width : 0);
}

// Left edges of the levels: a level is as wide as its widest node, and the branches between share the rest.
function columns(nodes, width) {
  const levels = [];
  for (const { depth, wide } of nodes) levels[depth] = Math.max(levels[depth] ?? 0, wide);
  const used = levels.reduce((sum, level) => sum + level, 0);
  const between = Math.max(16, Math.min(140, (width - used - 10) / Math.max(1, levels.length - 1)));
  const starts = levels.map((_, depth) => 4 + levels.slice(0, depth).reduce((sum, level) => sum + level + between, 0));
  return ({ depth }) => starts[depth];
}

// The tokens of a branch, with its numbers beside and below; at the right edge of a narrow page.
function write(svg, { branch, depth, text, letters, lines: [share, counted] }, x, y, edge) {
  const group = shape(svg, "g", { "data-branch": text, "data-depth": depth });
  const base = counted && !edge ? y - 4 : y + 4;
  if (branch.label && text !== "start") shape(group, "rect", { x: x - 3, y: base - 13, width: letters + 6, height: 17, rx: 3 }, { fill: "var(--paper)", stroke: "var(--c2)", "stroke-width": 1.6 });
  const own = { fill: branch.others ? "var(--grey)" : "var(--ink)", "font-weight": branch.others ? 400 : 700 };
  shape(group, "text", { x, y: base, "font-size": 13 }, own, text);
  const say = (content, left, top, fill) => shape(group, "text", { x: left, y: top, "text-anchor": edge ? "end" : "start", "font-size": 12 }, { fill }, content);
  if (share) say(share, edge ? edge - (counted ? 106 : 4) : x + letters + 8, base, "var(--ink)");
  if (counted) say(counted, edge ? edge - 4 : x, edge ? base : base + 16, "var(--c2)");
  shape(group, "title", {}, {}, `${text}: ${percent(branch.probability)} of the prefix${branch.share === undefined ? "" : `, ${percent(branch.share)} given the prefix before`}`);
}
