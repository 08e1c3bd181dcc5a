// The page is complete without this. It adds: hints at once, one client picked out everywhere, one run picked out
// everywhere, tables in another order.
(() => {
  "use strict";
  const root = document.documentElement;
  window.addEventListener("error", (event) => { root.dataset.error = event.message; });
  root.classList.add("js");

  function make(name, text, attributes = {}) {
    const element = document.createElement(name);
    if (text !== null) element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  // Hints: the text of the nearest <title>, shown where the pointer is instead of a second later.
  const tip = document.body.appendChild(make("div", null, { class: "tip", hidden: "", role: "status" }));
  function titleOf(target, chart) {
    for (let at = target; at && at !== chart; at = at.parentElement) {
      const title = [...at.children].find((child) => child.tagName === "title");
      if (title) return title;
    }
    return null;
  }
  function nearest(chart, event) {
    let best = null, least = 26;
    for (const mark of chart.querySelectorAll(".mark path")) {
      const box = mark.getBoundingClientRect();
      const far = Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
      if (far < least && mark.querySelector("title")) [best, least] = [mark, far];
    }
    return best;
  }
  for (const chart of document.querySelectorAll("svg.chart")) {
    chart.addEventListener("pointermove", (event) => {
      const title = titleOf(nearest(chart, event) || event.target, chart);
      tip.hidden = !title;
      if (!title) return;
      tip.textContent = title.textContent;
      const wide = tip.offsetWidth, room = window.innerWidth - 12;
      tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, room - wide))}px`;
      tip.style.top = `${event.clientY + 18 + tip.offsetHeight > window.innerHeight ? event.clientY - 12 - tip.offsetHeight : event.clientY + 18}px`;
    });
    chart.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  for (const part of document.querySelectorAll("article")) {
    // One run picked out, by its legend.
    const signs = part.querySelectorAll(".legend li");
    let only = null;
    function pick(run) {
      only = only === run ? null : run;
      part.classList.toggle("only", only !== null);
      for (const element of part.querySelectorAll("[data-run]")) element.classList.toggle("on", element.dataset.run === only);
      for (const sign of signs) sign.setAttribute("aria-pressed", String(sign.dataset.run === only));
    }
    for (const sign of signs) {
      sign.tabIndex = 0;
      sign.setAttribute("role", "button");
      sign.setAttribute("aria-pressed", "false");
      sign.addEventListener("click", () => pick(sign.dataset.run));
      sign.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        pick(sign.dataset.run);
      });
    }

    // One client picked out, and what every run does for it.
    const data = JSON.parse(part.querySelector("script.data").textContent);
    const chooser = part.querySelector(".chooser");
    const select = make("select", null, { id: `${part.id}-client` });
    select.append(make("option", "nobody in particular", { value: "" }));
    data.clients.forEach((client, place) => select.append(make("option", data.names[place], { value: client })));
    const shown = make("div", null, { "aria-live": "polite" });
    chooser.append(make("label", "Pick out a client", { for: select.id }), select, shown);
    if (data.left) chooser.append(make("p", `${data.left} better-served clients are not listed.`, { class: "note" }));
    chooser.hidden = false;

    const written = (v) => v === null ? "–" : data.share ? `${(100 * v).toFixed(1)}%` : String(Number(v.toPrecision(4)));
    const place = (v) => 100 * Math.max(0, Math.min(1, (v - data.ends[0]) / (data.ends[1] - data.ends[0])));
    function meter(run, kind, at) {
      const cell = make("td", null, { class: `meter s${kind % 7}` });
      const frame = cell.appendChild(make("i", ""));
      const [value, low, high] = [run.value[at], run.low[at], run.high[at]];
      if (value !== null) frame.append(make("b", "", { style: `width:${place(value)}%` }));
      if (low !== null && high !== null) {
        frame.append(make("s", "", { style: `left:${place(low)}%;width:${place(high) - place(low)}%` }));
      }
      return cell;
    }
    function choose(client) {
      select.value = client;
      part.classList.toggle("choosing", client !== "");
      for (const element of part.querySelectorAll("[data-client]")) {
        element.classList.toggle("chosen", element.dataset.client === client);
      }
      shown.replaceChildren();
      const at = data.clients.indexOf(Number(client));
      if (client === "" || at < 0) return;
      const body = make("tbody", null);
      data.runs.forEach((run, kind) => {
        const row = body.appendChild(make("tr", null));
        const span = run.low[at] === null ? "" : ` (${written(run.low[at]).replace("%", "")}–${written(run.high[at])})`;
        row.append(make("th", run.label, { scope: "row" }), meter(run, kind, at), make("td", written(run.value[at]) + span));
        row.append(make("td", run.weight && run.weight[at] !== null ? `weight ${Number(run.weight[at].toPrecision(3))}` : ""));
      });
      const table = make("table", null, { class: "one" });
      table.append(body);
      const frame = make("div", null, { class: "wide" });
      frame.append(table);
      shown.append(make("p", `${data.names[at]}: ${data.rows[at].toLocaleString("en")} training rows`, { class: "note" }), frame);
    }
    select.addEventListener("change", () => choose(select.value));
    for (const row of part.querySelectorAll(".row[data-client], .weights [data-client]")) {
      row.addEventListener("click", () => choose(part.querySelector(".chosen") === row ? "" : row.dataset.client));
    }

    // The runs in the order of a column: first as it is best read, then the other way round.
    for (const table of part.querySelectorAll("table.sortable")) {
      const body = table.tBodies[0];
      if (body.rows.length < 2) continue;
      [...table.tHead.rows[0].cells].forEach((head, column) => {
        const button = make("button", head.textContent, { type: "button" });
        head.replaceChildren(button);
        let sign = -1;
        button.addEventListener("click", () => {
          const value = (row) => column ? Number(row.cells[column].dataset.value) : row.cells[0].textContent;
          const order = (a, b) => {
            const [x, y] = [value(a), value(b)];
            if (column === 0) return -sign * x.localeCompare(y);
            return Number.isNaN(x) - Number.isNaN(y) || sign * (x - y);
          };
          body.append(...[...body.rows].sort(order));
          for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
          head.setAttribute("aria-sort", (column === 0 ? -sign : sign) > 0 ? "ascending" : "descending");
          sign = -sign;
        });
      });
    }
  }
  root.dataset.ready = "yes";
})();
