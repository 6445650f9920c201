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

function compare(select) {
  const table = select.closest(".choose").nextElementSibling;
  each(".difference", (cell) => {
    const [text, verdict] = JSON.parse(cell.dataset.differences)[Number(select.value)];
    cell.textContent = text;
    cell.className = `number difference ${verdict}`;
  }, table);
}

const charts = [];
each(".chart", (place) => charts.push(new Chart(place)));

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
each(".choose select", (select) => select.addEventListener("change", () => compare(select)));

let wasDark = false;
addEventListener("beforeprint", () => {
  wasDark = isDark();
  setTheme(false);
});
addEventListener("afterprint", () => setTheme(wasDark));
