// Draws the figures of a page: each has a Vega-Lite specification as JSON in a data block.
//
// The Content-Security-Policy allows no evaluation of strings, so expressions are interpreted from their syntax trees.
import { parse, View } from "vega";
import { expressionInterpreter } from "vega-interpreter";
import { compile } from "vega-lite";
import { Handler } from "vega-tooltip";
import { csvOf } from "./csv.js";
import { CONFIG } from "./theme.js";

const EXPORT_WIDTH = 900;
const EXPORT_SCALE = 2;
const ZOOM_FACTOR = 2;

const tooltip = new Handler({ disableDefaultStyle: true, theme: "chart" });
/** Figure → its view, or null until the figure is drawn. */
const views = new Map();

function sourceOf(figure) {
  return figure.querySelector('script[type="application/json"]').textContent;
}

function createView(specification, config, options) {
  const { spec } = compile(specification, { config });
  return new View(parse(spec, null, { ast: true }), { expr: expressionInterpreter, ...options });
}

/** Draws a figure; if that fails, the sentence stays, and the other figures are drawn. */
function render(figure) {
  if (views.get(figure)) return;
  const drawing = figure.querySelector(".chart-drawing");
  const sentence = [...drawing.childNodes];
  nearby.unobserve(figure);
  try {
    drawInto(drawing, figure);
  } catch (error) {
    drawing.replaceChildren(...sentence);
    console.error("chart not drawn", error);
  }
}

function drawInto(drawing, figure) {
  const specification = JSON.parse(sourceOf(figure));
  const view = createView(specification, CONFIG, { hover: true, renderer: "svg", tooltip: tooltip.call });
  // Removes the sentence.
  view.initialize(drawing);
  view.run();
  views.set(figure, view);
  // The view has set another role, whose children a screen reader would read out.
  drawing.setAttribute("role", "img");
  drawing.querySelector("svg").setAttribute("aria-hidden", "true");
  sizes.observe(drawing);
  figure.classList.add("drawn");
  if (Object.keys(specification.usermeta.columns).length) figure.append(toolbar(figure, view, specification));
}

const nearby = new IntersectionObserver(
  (entries) => entries.forEach((entry) => entry.isIntersecting && render(entry.target)),
  { rootMargin: "400px" },
);

const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const view = views.get(target.closest("figure"));
    if (view && contentRect.width && Math.abs(view.width() - contentRect.width) >= 1) view.width(contentRect.width).run();
  }
});

/** Draws the figures in view at once, and all others when they are about to come into view. */
function draw(root = document) {
  for (const [figure, view] of views)
    if (!figure.isConnected) {
      view?.finalize();
      nearby.unobserve(figure);
      views.delete(figure);
    }
  for (const figure of root.querySelectorAll("figure.chart")) {
    if (views.has(figure)) continue;
    views.set(figure, null);
    const { top, bottom, width } = figure.getBoundingClientRect();
    if (width && top < innerHeight && bottom > 0) render(figure);
    else nearby.observe(figure);
  }
}

function toolbar(figure, view, specification) {
  const { file } = specification.usermeta;
  const tools = document.createElement("div");
  tools.className = "chart-tools";
  const add = (text, title, action) => {
    const button = document.createElement("button");
    Object.assign(button, { type: "button", textContent: text, title, onclick: action });
    button.setAttribute("aria-label", `${text} – ${title}: ${specification.usermeta.title}`);
    tools.append(button);
  };
  const domain = zoomSignal(view);
  if (domain) {
    add("+", "Zoom in", () => zoom(view, domain, 1 / ZOOM_FACTOR));
    add("−", "Zoom out", () => zoom(view, domain, ZOOM_FACTOR));
    add("All", "Show the whole time", () => view.signal(domain, null).run());
  }
  add("PNG", "Download as an image", async () => save(await imageUrl(figure, specification, "png"), `${file}.png`));
  add("SVG", "Download as a drawing", async () => save(await imageUrl(figure, specification, "svg"), `${file}.svg`));
  add("CSV", "Download the numbers", () => {
    const text = csvOf(specification);
    save(URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" })), `${file}.csv`);
  });
  return tools;
}

/** Returns the name of the signal with the visible part of the time axis; undefined without a time axis. */
function zoomSignal(view) {
  const { signals } = view.getState({ data: () => false, signals: (name) => name === "zoom_t" });
  return Object.keys(signals)[0];
}

/** Changes the length of the visible part of the time axis; the newest visible time stays. */
function zoom(view, signal, factor) {
  const [first, last] = view.scale("x").domain().map(Number);
  view.signal(signal, [last - (last - first) * factor, last]).run();
}

/** Returns the address of a picture with title, in the light colours, whatever the page looks like. */
async function imageUrl(figure, specification, type) {
  const sample = document.createElement("span");
  sample.className = "chart-light";
  figure.append(sample);
  const colors = getComputedStyle(sample);
  const text = JSON.stringify({
    ...specification,
    background: "var(--chart-paper)",
    padding: 16,
    title: specification.usermeta.title,
    width: EXPORT_WIDTH,
  });
  const resolve = (json) => json.replaceAll(/var\((--[\w-]+)\)/g, (_, name) => colors.getPropertyValue(name).trim());
  const config = JSON.parse(resolve(JSON.stringify(CONFIG)));
  const view = createView(JSON.parse(resolve(text)), config, { renderer: "none" });
  sample.remove();
  try {
    return await view.toImageURL(type, EXPORT_SCALE);
  } finally {
    view.finalize();
  }
}

function save(url, name) {
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  if (url.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

addEventListener("beforeprint", () => [...views.keys()].forEach((figure) => figure.isConnected && figure.offsetWidth && render(figure)));
globalThis.abMonitorCharts = { draw };
// page.js keeps the figures whose specification did not change.
document.addEventListener("page-updated", () => draw());
if (document.readyState === "loading") addEventListener("DOMContentLoaded", () => draw());
else draw();
