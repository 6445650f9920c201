"use strict";

const root = document.documentElement;
const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const hiddenMethods = new Set();

const isDark = () => root.dataset.theme === "dark";
const each = (selector, act, within = document) => within.querySelectorAll(selector).forEach(act);

function setTheme(dark) {
  root.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").textContent = dark ? "Light" : "Dark";
}

/** Shows what neither its method nor its name in the legend hides. */
class Chart {
  constructor(place) {
    this.place = place;
    this.hidden = new Set();
    each("[data-name]", (name) => {
      const toggle = () => {
        if (!this.hidden.delete(name.dataset.name)) this.hidden.add(name.dataset.name);
        this.show();
      };
      name.addEventListener("click", toggle);
      name.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        toggle();
      });
    }, place);
  }

  show() {
    const isHidden = (key, method) => this.hidden.has(key) || hiddenMethods.has(method);
    each("[data-key]", (part) => {
      part.classList.toggle("hidden", isHidden(part.dataset.key, part.dataset.method));
    }, this.place);
    each("[data-name]", (name) => {
      name.setAttribute("aria-pressed", String(!isHidden(name.dataset.name, name.dataset.method)));
    }, this.place);
  }
}

/** A number to sort by; NaN where a cell has none. */
function numberOf(text) {
  return text === "reference" ? 0 : Number.parseFloat(text.replaceAll(",", ""));
}

/** Sorts the rows of a table by the column whose head says so; empty cells are last. */
function sort(table) {
  const heads = [...table.tHead.rows[0].cells];
  const place = heads.findIndex((head) => head.hasAttribute("aria-sort"));
  if (place < 0) return;
  const sign = heads[place].getAttribute("aria-sort") === "ascending" ? 1 : -1;
  const isNumber = heads[place].classList.contains("number");
  const rows = [...table.tBodies[0].rows].map((row) => {
    const text = row.cells[place].textContent;
    return { row, text, value: isNumber ? numberOf(text) : 0 };
  });
  rows.sort((a, b) => Number.isNaN(a.value) - Number.isNaN(b.value) || sign * (
    isNumber ? a.value - b.value || 0 : a.text.localeCompare(b.text, "en", { numeric: true })
  ));
  table.tBodies[0].append(...rows.map(({ row }) => row));
}

/** Makes every head of a column a button; numbers start with the largest. */
function makeSortable(table) {
  each("thead th", (head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      each("th[aria-sort]", (sorted) => sorted.removeAttribute("aria-sort"), table);
      head.setAttribute("aria-sort", order);
      sort(table);
    });
  }, table);
}

function compare(select) {
  const table = select.closest(".choose").nextElementSibling.querySelector("table");
  each(".difference", (cell) => {
    const [text, verdict] = JSON.parse(cell.dataset.differences)[Number(select.value)];
    cell.textContent = text;
    cell.className = `number difference ${verdict}`;
  }, table);
  sort(table);
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const short = (value) => String(Number(value.toPrecision(4)));

/** Draws what a figure of clients knows of one client with one seed, over the rounds. */
class Histories {
  constructor(chart) {
    this.chart = chart;
    this.boxes = JSON.parse(chart.place.querySelector("script").textContent);
    this.input = chart.place.querySelector("input");
    this.input.addEventListener("change", () => this.find(this.input.value.trim()));
    chart.place.classList.add("has-histories");
    each("[data-box]", (box) => box.addEventListener("click", (event) => {
      const points = [...box.querySelectorAll("use")];
      const row = points.indexOf(event.target.closest("use"));
      if (row >= 0) this.show(this.boxes[box.dataset.box], row);
    }), chart.place);
  }

  find(client) {
    const box = this.boxes.find(({ clients }) => clients.includes(client));
    if (box) this.show(box, box.clients.indexOf(client));
    else this.say(`There is no client ${client}.`);
  }

  say(text) {
    this.chart.place.querySelector("[role=status]").textContent = text;
  }

  /** Values of one row; null where there is none. */
  read(box, row) {
    const bytes = Uint8Array.from(atob(box.values), (letter) => letter.charCodeAt(0));
    const width = box.rounds.length;
    const numbers = new DataView(bytes.buffer);
    return box.rounds.map((round, k) => {
      const number = numbers.getUint16(2 * (row * width + k), true);
      return number === 65535 ? null : box.low + (number / 65534) * (box.high - box.low);
    });
  }

  show(chosen, row) {
    const client = chosen.clients[row];
    const seed = chosen.seeds[row];
    const lines = this.boxes.filter((box) => box.panel === chosen.panel).map((box) => {
      const at = box.clients.findIndex((c, k) => c === client && box.seeds[k] === seed);
      const values = at < 0 ? [] : this.read(box, at);
      const points = values.flatMap((y, k) => (y === null ? [] : [{ x: box.rounds[k], y }]));
      return { box, points, isChosen: box === chosen };
    }).filter(({ points }) => points.length);
    this.input.value = client;
    this.say(`${seed === null ? "" : `seed ${seed}; `}own test data, in every evaluated round.`);
    const names = lines.map(({ box, points }) => {
      const item = document.createElement("li");
      item.dataset.key = box.label;
      item.dataset.method = box.method;
      const mark = svg("svg", { viewBox: "0 0 24 8" }, svg("line", {
        x1: 0, x2: 24, y1: 4, y2: 4, style: `stroke: ${box.color}`, "stroke-dasharray": box.dash,
      }));
      item.append(mark, ` ${box.label}: ${short(points.at(-1).y)} in round ${points.at(-1).x}`);
      return item;
    });
    const list = document.createElement("ul");
    list.append(...names);
    this.chart.place.querySelector(".history").replaceChildren(this.draw(lines, client), list);
    this.chart.show();
  }

  draw(lines, client) {
    const all = lines.flatMap(({ points }) => points);
    const [left, top, right, bottom] = [48, 10, 590, 170];
    const span = (values) => [Math.min(...values), Math.max(...values)];
    const [firstX, lastX] = span(all.map(({ x }) => x));
    const [low, high] = span(all.map(({ y }) => y));
    const place = (value, a, b, start, end) => (
      b > a ? start + ((value - a) / (b - a)) * (end - start) : (start + end) / 2
    );
    const at = ({ x, y }) => [place(x, firstX, lastX, left, right), place(y, low, high, bottom, top)];
    const picture = svg("svg", {
      viewBox: "0 0 600 200", role: "img", "aria-label": `history of client ${client}`,
    });
    for (const y of new Set([low, (low + high) / 2, high])) {
      const [, height] = at({ x: firstX, y });
      picture.append(
        svg("line", { class: "grid", x1: left, x2: right, y1: height, y2: height }),
        svg("text", { x: left - 6, y: height + 4, "text-anchor": "end" }, short(y)),
      );
    }
    for (const x of new Set([firstX, Math.round((firstX + lastX) / 2), lastX])) {
      const text = x === lastX ? `round ${x}` : String(x);
      const anchor = x === lastX ? "end" : "middle";
      picture.append(svg("text", { x: at({ x, y: low })[0], y: 190, "text-anchor": anchor }, text));
    }
    for (const { box, points, isChosen } of lines) {
      const line = svg("polyline", {
        points: points.map((point) => at(point).join(",")).join(" "),
        "stroke-dasharray": box.dash,
        "stroke-width": isChosen ? 2.5 : 1.2,
      });
      const marks = points.map((point) => {
        const [cx, cy] = at(point);
        const title = svg("title", {}, `${box.label}\nround ${point.x}: ${short(point.y)}`);
        return svg("circle", { cx, cy, r: isChosen ? 3.5 : 2.5 }, title);
      });
      picture.append(svg("g", {
        "data-key": box.label, "data-method": box.method, style: `color: ${box.color}`,
      }, line, ...marks));
    }
    return picture;
  }
}

const charts = [];
each(".chart", (place) => {
  charts.push(new Chart(place));
  if (place.querySelector(".history")) new Histories(charts.at(-1));
});
each("table.numbers", makeSortable);

let isChosen = false;
setTheme(darkScheme.matches);
document.getElementById("theme").addEventListener("click", () => {
  isChosen = true;
  setTheme(!isDark());
});
darkScheme.addEventListener("change", () => {
  if (!isChosen) setTheme(darkScheme.matches);
});

each("#methods button", (button) => button.addEventListener("click", () => {
  const { method } = button.dataset;
  if (!hiddenMethods.delete(method)) hiddenMethods.add(method);
  button.setAttribute("aria-pressed", String(!hiddenMethods.has(method)));
  each("tr[data-method]", (row) => row.classList.toggle("hidden", hiddenMethods.has(row.dataset.method)));
  charts.forEach((chart) => chart.show());
}));
each("select.reference", (select) => select.addEventListener("change", () => compare(select)));
each("select.axis", (select) => select.addEventListener("change", () => {
  const chart = select.closest("figure").querySelector(".chart");
  [...chart.querySelectorAll(".view")].forEach((view, k) => { view.hidden = k !== Number(select.value); });
}));

let wasDark = false;
addEventListener("beforeprint", () => {
  wasDark = isDark();
  setTheme(false);
});
addEventListener("afterprint", () => setTheme(wasDark));
