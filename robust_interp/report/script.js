"use strict";
// Sorting and filtering of the leaderboard. The state is in the address after '#', so that a link can contain a
// view: #sort=-pgd_16&filter=in_resnet&members=single ('-' sorts in descending order).
(() => {
  const board = document.getElementById("board");
  const groups = [...board.tBodies]; // one per protocol, sorted separately
  const lines = (group) => [...group.rows].filter((row) => !row.classList.contains("group"));
  const rows = groups.flatMap(lines);
  const heads = [...board.tHead.rows[0].cells];
  const filter = document.getElementById("filter");
  const members = document.getElementById("members");
  const intervals = document.getElementById("intervals");
  const shown = document.getElementById("shown");
  const folded = (text) => text.normalize("NFKC").toLowerCase();
  const named = rows.map((row) => folded([...row.querySelectorAll(".text")].map((cell) => cell.textContent).join(" ")));
  const order = { column: "", direction: 1 };

  function compare(a, b) {
    if (a === "" || b === "") return (a === "") - (b === ""); // empty cells are last in both directions
    const x = Number(a), y = Number(b);
    const found = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
    return order.direction * found;
  }

  function sort(column, direction) {
    const at = heads.findIndex((head) => head.dataset.column === column);
    if (at < 0) return;
    Object.assign(order, { column, direction });
    const value = (row) => row.cells[at].dataset.value;
    for (const group of groups) group.append(...lines(group).sort((a, b) => compare(value(a), value(b))));
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[at].setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
  }

  function show() {
    const terms = folded(filter.value).split(/\s+/).filter(Boolean);
    const kind = members ? members.value : "";
    let count = 0;
    rows.forEach((row, i) => {
      const isKind = !kind || (kind === "ensemble") === Number(row.dataset.members) > 1;
      row.hidden = !(isKind && terms.every((term) => named[i].includes(term)));
      count += !row.hidden;
    });
    for (const group of groups) group.hidden = lines(group).every((row) => row.hidden);
    board.classList.toggle("bare", !intervals.checked);
    shown.textContent = count ? `${count} of ${rows.length} entries` : "no entry matches";
  }

  function remember() {
    const state = new URLSearchParams();
    if (order.column) state.set("sort", (order.direction < 0 ? "-" : "") + order.column);
    if (filter.value) state.set("filter", filter.value);
    if (members && members.value) state.set("members", members.value);
    if (!intervals.checked) state.set("intervals", "0");
    try {
      history.replaceState(null, "", "#" + state);
    } catch {
      // an embedded page may not change its address
    }
  }

  function recall() {
    if (!location.hash.includes("=")) return; // the address of a section or a definition
    const state = new URLSearchParams(location.hash.slice(1));
    const by = state.get("sort") || "";
    if (by) sort(by.replace(/^-/, ""), by.startsWith("-") ? -1 : 1);
    filter.value = state.get("filter") || "";
    if (members) members.value = ["single", "ensemble"].includes(state.get("members")) ? state.get("members") : "";
    intervals.checked = state.get("intervals") !== "0";
    show();
  }

  heads.forEach((head) => {
    const label = head.querySelector(".sort");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.textContent = label.textContent;
    label.replaceWith(button);
    button.addEventListener("click", () => {
      const first = head.classList.contains("accuracy") ? -1 : 1; // highest accuracy first
      const again = order.column === head.dataset.column;
      sort(head.dataset.column, again ? -order.direction : first);
      remember();
    });
  });
  for (const control of [filter, members, intervals]) {
    if (control) control.addEventListener("input", () => { show(); remember(); });
  }
  const controls = document.getElementById("controls");
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.hidden = false;
  const sorted = heads.find((head) => head.hasAttribute("aria-sort"));
  if (sorted) order.column = sorted.dataset.column;
  window.addEventListener("hashchange", recall);
  show();
  recall();
})();

// A note above each table that is wider than the page.
(() => {
  const note = (area) => {
    const found = document.createElement("p");
    found.className = "goes-on";
    found.textContent = "Wider than the page: scroll sideways →";
    area.before(found);
    return found;
  };
  const notes = new Map([...document.querySelectorAll(".scroll")].map((area) => [area, note(area)]));
  const look = () => notes.forEach((found, area) => { found.hidden = area.scrollWidth <= area.clientWidth + 1; });
  window.addEventListener("resize", look);
  document.addEventListener("toggle", look, true); // a table has a width only after it is unfolded
  look();
})();
// Unfold everything before printing.
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
