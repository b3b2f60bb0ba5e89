// Your results: the comparisons in the folder of runs, and the report of one of them.

import { element } from "../controls.js";

let page = null, parts = null;

export const tab = {
  name: "results",
  title: "Your results",

  mount(root, given) {
    page = given;
    parts = { folder: element("p", { class: "lead" }), rows: element("tbody"), frame: element("div", { class: "report result" }) };
    const heads = ["run", "date", "result"].map((head) => element("th", { class: "left-aligned" }, head));
    parts.table = element("div", { class: "scroll runs" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), parts.rows));
    root.append(parts.folder, parts.table, parts.frame);
  },

  show(answer) {
    parts.folder.textContent = answer.runs.length
      ? `Comparisons in the folder ${answer.folder}, the newest first. Choose one to read its report.`
      : `There is no comparison in the folder ${answer.folder} yet: "make demo" or "numerate compare" writes one there; --runs names another folder.`;
    parts.table.hidden = !answer.runs.length;
    parts.rows.replaceChildren(...answer.runs.map((run) => row(run, run.name === answer.open)));
    const open = answer.runs.find((run) => run.name === answer.open);
    if (parts.frame.dataset.name === (open?.name ?? "")) return;
    parts.frame.dataset.name = open?.name ?? "";
    parts.frame.replaceChildren(...(open ? report(open) : []));
  },
};

function row(run, open) {
  const choose = element("button", { type: "button", "aria-pressed": String(open) }, run.name);
  choose.addEventListener("click", () => page.set({ name: run.name }));
  const date = run.date.slice(0, 16).replace("T", " ");
  return element("tr", { "data-run": run.name, class: open ? "open" : "" }, element("td", {}, choose), element("td", { class: "left-aligned date" }, date),
    element("td", { class: "left-aligned" }, run.answer || (run.report ? "the report has no answer" : "no report yet: numerate report writes one")));
}

function report(run) {
  const title = element("h2", {}, run.name);
  if (!run.report) return [title, element("p", { class: "note" }, "This comparison has no report yet: numerate report writes one.")];
  const link = element("a", { href: run.report, target: "_blank", rel: "noopener" }, "Open the report on a page of its own");
  return [title, element("p", { class: "note" }, link), element("iframe", { src: run.report, sandbox: "allow-scripts allow-downloads", title: `Report of ${run.name}` })];
}
