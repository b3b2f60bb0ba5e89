"use strict";
// Sort tables, hide losses, and show the values of figures under the pointer. The page reads the same without this.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // A cell's number: "▲ 12.3 11.0 to 13.1" is 12.3, "no number" is last. NaN where there is none.
  const number = text => {
    if (/^[\s▲▼]*(no number|∞)/.test(text)) return Infinity;
    const found = text.replace(/−/g, "-").replace(/,(?=\d{3})/g, "").match(/[-+]?\d[\d.]*(e[-+]?\d+)?/);
    return found ? parseFloat(found[0]) : NaN;
  };
  // Sort the rows of each group. In a column of numbers, cells without one stay last.
  const sort = (table, column, down) => {
    const text = row => (row.cells[column] ? row.cells[column].textContent.trim() : "");
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter(row => !row.querySelector(".group"));
      const numeric = column > 0 && rows.some(row => !isNaN(number(text(row))));
      const missing = row => numeric && isNaN(number(text(row)));
      const order = (a, b) => {
        if (!numeric) return text(a).localeCompare(text(b), undefined, { numeric: true });
        const [x, y] = [number(text(a)), number(text(b))];
        return x === y ? 0 : x - y;
      };
      rows.sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : (down ? -1 : 1) * order(a, b)));
      body.append(...rows);
    }
  };
  for (const table of all("table[data-sort]")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = "Sort by this column";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sort(table, column, down);
      });
    });
  }

  // A loss is a row or a column of a table, and a part of a figure.
  const parts = key => {
    const found = all(`svg [data-loss="${key}"]`);
    for (const name of all(`table .loss[data-loss="${key}"]`)) {
      const head = name.closest("th"), row = name.closest("tr");
      if (!row.closest("thead")) { found.push(row); continue; }
      for (const other of row.closest("table").rows) {
        if (!other.querySelector(".group")) found.push(other.cells[head.cellIndex]);
      }
    }
    return found;
  };
  for (const box of all("#losses input")) {
    const toggle = () => parts(box.value).forEach(part => part.classList.toggle("gone", !box.checked));
    box.addEventListener("change", toggle);
    toggle(); // a browser may keep the boxes of an earlier visit
  }
  all("#losses").forEach(list => { list.hidden = all("input", list).length < 2; });

  // Values under the pointer or finger, at once; without script, a browser shows the title elements after a while.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);
  for (const title of all("figure svg title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  document.addEventListener("pointerover", event => {
    const target = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.className = target ? "shown" : "";
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18 + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${below ? event.clientY + 18 : event.clientY - 10 - tip.offsetHeight}px`;
  });
  document.addEventListener("scroll", () => { tip.className = ""; }, { passive: true, capture: true });

  // The table of contents is closed where it would fill the screen.
  if (!window.matchMedia("(min-width: 1240px)").matches) all("#contents").forEach(list => { list.open = false; });
})();
