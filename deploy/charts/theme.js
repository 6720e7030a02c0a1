// The look of all charts. Colours are CSS variables of charts.css, so that dark mode and print need no new drawing.
export const FONT = 'system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
const INK = "var(--chart-ink)";
const SOFT = "var(--chart-soft)";
const GRID = "var(--chart-grid)";

export const CONFIG = {
  // The figure has one label; a screen reader gets the numbers from the tables of the page.
  aria: false,
  background: "transparent",
  font: FONT,
  padding: { left: 2, right: 6, top: 4, bottom: 2 },
  autosize: { type: "fit-x", contains: "padding", resize: true },
  view: { stroke: null },
  title: { anchor: "start", color: INK, fontSize: 15, fontWeight: 600, offset: 12 },
  axis: {
    domainColor: SOFT, domainOpacity: 0.5, gridColor: GRID, labelColor: SOFT, labelFontSize: 12, labelPadding: 6,
    tickColor: SOFT, tickOpacity: 0.5, tickSize: 4, titleColor: SOFT, titleFontSize: 12, titleFontWeight: 400,
  },
  axisY: { domain: false, ticks: false, tickCount: 5, titleAlign: "left", titleAnchor: "start", titleAngle: 0, titleX: 0, titleY: -10 },
  legend: {
    columns: { signal: "max(1, floor(width / 190))" }, direction: "horizontal", labelColor: INK, labelFontSize: 12,
    labelLimit: 240, offset: 26, orient: "top", symbolSize: 220, symbolStrokeWidth: 2.5, title: null,
  },
  text: { color: SOFT, fontSize: 12 },
};
