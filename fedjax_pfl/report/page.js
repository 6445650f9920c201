"use strict";

const charts = JSON.parse(document.getElementById("charts").textContent);
const root = document.documentElement;
const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const canHover = matchMedia("(hover: hover)").matches;
const hiddenMethods = new Set();
const NARROW = 640; // pixels
const PRINT_WIDTH = 680; // pixels between the margins of a page of paper

const isDark = () => root.dataset.theme === "dark";
const each = (selector, act, within = document) => within.querySelectorAll(selector).forEach(act);

function setTheme(dark) {
  root.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").textContent = dark ? "Light" : "Dark";
}

/** A figure in the colors of the page. */
function painted(figure) {
  const paint = (_, value) => (isDark() && typeof value === "string" && charts.dark[value]) || value;
  const style = getComputedStyle(root);
  const color = (name) => style.getPropertyValue(name).trim();
  const axis = {
    gridcolor: color("--line"), zerolinecolor: color("--line"), linecolor: color("--soft"),
    automargin: true, title: { standoff: 8 },
  };
  const { data, layout } = JSON.parse(JSON.stringify(figure), paint);
  for (const trace of data) if (trace.meta?.short && innerWidth < NARROW) trace.text = [trace.meta.short];
  layout.template = { layout: { xaxis: axis, yaxis: axis } };
  layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
  layout.font = { color: color("--ink"), size: 12, family: getComputedStyle(document.body).fontFamily };
  layout.hoverlabel = { bgcolor: color("--field"), bordercolor: color("--line"), font: { color: color("--ink") }, align: "left" };
  layout.dragmode = canHover ? "zoom" : false; // fingers scroll the page
  return { data, layout };
}

/** The mark of a button of a legend. */
function mark(entry) {
  const color = (isDark() && charts.dark[entry.color]) || entry.color;
  const dash = { dash: "6 3", dot: "2 3" }[entry.dash] || "none";
  const outline = `fill="none" stroke="${color}" stroke-width="1.5"`;
  const fill = entry.is_hollow ? outline : `fill="${color}"`;
  const shapes = {
    box: `<rect x="4" y="2" width="18" height="8" fill="none" stroke="${color}" stroke-width="2"/>`,
    circle: `<circle cx="13" cy="6" r="5" ${fill}/>`,
    diamond: `<path d="M13 0 19 6 13 12 7 6z" ${fill}/>`,
    square: `<rect x="8" y="1" width="10" height="10" ${fill}/>`,
    x: `<path d="M8 1 18 11M18 1 8 11" stroke="${color}" stroke-width="${entry.is_hollow ? 1.5 : 3}"/>`,
  };
  const path = `<path d="M0 6H26" stroke="${color}" stroke-width="2.5" stroke-dasharray="${dash}"/>`;
  const line = entry.is_hollow ? `${path}<circle cx="13" cy="6" r="4" ${outline}/>` : path;
  return `<svg width="26" height="12" aria-hidden="true">${shapes[entry.dash] || line}</svg>`;
}

class Chart {
  constructor(place, content) {
    this.hidden = new Set();
    this.content = content;
    this.drawings = content.panels.map((panel) => {
      const box = place.appendChild(document.createElement("div"));
      box.className = "panel";
      if (panel.title) box.appendChild(document.createElement("h4")).textContent = panel.title;
      return { figure: panel.figure, place: box.appendChild(document.createElement("div")) };
    });
    this.legend = place.parentElement.querySelector(".legend");
    this.buttons = content.legend.map((entry) => {
      const button = this.legend.appendChild(document.createElement("button"));
      button.type = "button";
      button.addEventListener("click", () => {
        if (!this.hidden.delete(entry.key)) this.hidden.add(entry.key);
        this.show();
      });
      return button;
    });
  }

  isHidden(key, method) {
    return this.hidden.has(key) || hiddenMethods.has(method);
  }

  draw() {
    const config = { displaylogo: false, responsive: true, displayModeBar: canHover ? "hover" : false };
    for (const { figure, place } of this.drawings) {
      const { data, layout } = painted(figure);
      Plotly.react(place, data, layout, config);
    }
    this.content.legend.forEach((entry, k) => {
      this.buttons[k].innerHTML = mark(entry);
      this.buttons[k].append(entry.name);
    });
    this.show();
  }

  show() {
    for (const { figure, place } of this.drawings) {
      if (!figure.data.length || !figure.data[0].meta) continue;
      const visible = figure.data.map(({ meta }) => !this.isHidden(meta.key, meta.method));
      Plotly.restyle(place, { visible });
    }
    this.content.legend.forEach((entry, k) => {
      this.buttons[k].setAttribute("aria-pressed", String(!this.isHidden(entry.key, entry.method)));
    });
  }

  /** For paper: as wide as it, and lower; null for the screen. */
  resize(paper) {
    for (const { figure, place } of this.drawings) {
      const { height } = figure.layout;
      const width = paper && (this.drawings.length > 1 ? paper / 2 - 10 : paper);
      Plotly.relayout(place, { autosize: paper === null, width, height: paper ? 0.75 * height : height });
    }
  }
}

function compare(select) {
  const table = select.closest(".choose").nextElementSibling;
  each(".difference", (cell) => {
    const [text, verdict] = JSON.parse(cell.dataset.differences)[Number(select.value)];
    cell.textContent = text;
    cell.className = `number difference ${verdict}`;
  }, table);
}

function start() {
  const drawn = [];
  each("[data-chart]", (place) => drawn.push(new Chart(place, charts.figures[place.dataset.chart])));
  const draw = () => drawn.forEach((chart) => chart.draw());
  draw();

  let isChosen = false;
  document.getElementById("theme").addEventListener("click", () => {
    isChosen = true;
    setTheme(!isDark());
    draw();
  });
  darkScheme.addEventListener("change", () => {
    if (isChosen) return;
    setTheme(darkScheme.matches);
    draw();
  });

  each("#methods button", (button) => button.addEventListener("click", () => {
    const { method } = button.dataset;
    if (!hiddenMethods.delete(method)) hiddenMethods.add(method);
    button.setAttribute("aria-pressed", String(!hiddenMethods.has(method)));
    each("tr[data-method]", (row) => row.classList.toggle("hidden", hiddenMethods.has(row.dataset.method)));
    drawn.forEach((chart) => chart.show());
  }));

  let wasDark = false;
  addEventListener("beforeprint", () => {
    wasDark = isDark();
    setTheme(false);
    draw();
    drawn.forEach((chart) => chart.resize(PRINT_WIDTH));
  });
  addEventListener("afterprint", () => {
    setTheme(wasDark);
    draw();
    drawn.forEach((chart) => chart.resize(null));
  });
  root.dataset.ready = "true";
}

/** The library is kept packed: a third of its size. */
async function unpack() {
  const text = document.getElementById("plotly").textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

setTheme(darkScheme.matches);
each(".choose select", (select) => select.addEventListener("change", () => compare(select)));
unpack().then(start);
