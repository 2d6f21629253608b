// Tables that are sorted by a click on a heading and filtered by a text. Without this script they hold every row.
"use strict";
(() => {
  document.querySelectorAll("table[data-sortable]").forEach((table) => {
    const body = table.tBodies[0], value = (row, i) => row.cells[i].dataset.v ?? row.cells[i].textContent;
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      head.tabIndex = 0;
      head.onclick = () => {
        const sign = head.ariaSort === "ascending" ? -1 : 1;
        [...table.tHead.rows[0].cells].forEach((cell) => cell.removeAttribute("aria-sort"));
        head.ariaSort = sign > 0 ? "ascending" : "descending";
        const compare = (a, b) => head.className !== "number" ? sign * a.localeCompare(b, undefined, { numeric: true })
          : a === "" ? 1 : b === "" ? -1 : sign * (a - b);
        body.append(...[...body.rows].sort((a, b) => compare(value(a, i), value(b, i))));
      };
      head.onkeydown = (event) => { if (event.key === "Enter") head.click(); };
    });
    if (body.rows.length < 12) return;
    const filter = Object.assign(document.createElement("input"),
      { type: "search", placeholder: "filter rows", ariaLabel: "filter rows", className: "filter" });
    filter.oninput = () => { for (const row of body.rows) row.hidden = !row.textContent.includes(filter.value); };
    table.parentElement.before(filter);
  });
})();
