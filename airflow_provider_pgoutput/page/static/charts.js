// Plain SVG: a line over time, and stacked bars for each run. Names are set as text, never as HTML.

import { element } from "./elements.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 420;
const HEIGHT = 150;
const LEFT = 62;
const BOTTOM = 20;
const TOP = 8;
const PARTS = ["first", "second", "third"];

function shape(name, attributes = {}, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

function frame(title, highest, label, times) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  const floor = HEIGHT - BOTTOM;
  svg.append(
    shape("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: floor, y2: floor }),
    shape("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: TOP, y2: TOP }),
    shape("text", { x: LEFT - 4, y: TOP + 4, "text-anchor": "end" }, label(highest)),
    shape("text", { x: LEFT - 4, y: floor + 4, "text-anchor": "end" }, label(0)),
    shape("text", { x: LEFT, y: HEIGHT - 4 }, times[0]),
    shape("text", { x: WIDTH, y: HEIGHT - 4, "text-anchor": "end" }, times.at(-1)),
  );
  return svg;
}

function figure(title, content) {
  const made = element("figure");
  made.append(element("figcaption", title), content);
  return made;
}

const height = (value, highest) => (value / highest) * (HEIGHT - BOTTOM - TOP);
const times = (points) => points.map((point) => point.time.toLocaleString());

// points: [{time, value}]; limit: a horizontal line, or null.
export function lineChart(title, points, label, limit = null) {
  if (!points.length) return figure(title, element("p", "No value yet.", "soft"));
  const highest = Math.max(...points.map((point) => point.value), limit ?? 0) || 1;
  const svg = frame(title, highest, label, times(points));
  const floor = HEIGHT - BOTTOM;
  const [first, last] = [points[0].time, points.at(-1).time];
  const x = (time) => LEFT + ((time - first) / (last - first || 1)) * (WIDTH - LEFT);
  const at = points.map((point) => `${x(point.time)},${floor - height(point.value, highest)}`);
  if (points.length === 1) at.push(`${WIDTH},${floor - height(points[0].value, highest)}`);
  svg.append(shape("polyline", { class: "line first", points: at.join(" ") }));
  if (limit !== null) {
    const y = floor - height(limit, highest);
    svg.append(shape("line", { class: "line limit", x1: LEFT, x2: WIDTH, y1: y, y2: y }));
  }
  return figure(title, svg);
}

// points: [{time, values: [bottom, ..., top]}]; names: of the parts, three at most.
export function barChart(title, names, points, label) {
  if (!points.length) return figure(title, element("p", "No value yet.", "soft"));
  const sum = (point) => point.values.reduce((total, value) => total + value, 0);
  const highest = Math.max(...points.map(sum)) || 1;
  const svg = frame(title, highest, label, times(points));
  const step = (WIDTH - LEFT) / points.length;
  points.forEach((point, i) => {
    let floor = HEIGHT - BOTTOM;
    point.values.forEach((value, part) => {
      const tall = height(value, highest);
      floor -= tall;
      const bar = shape("rect", {
        class: PARTS[part], x: LEFT + i * step, y: floor, width: Math.max(step - 1, 1), height: tall,
      });
      bar.append(shape("title", {}, `${point.time.toLocaleString()}: ${names[part]} ${label(value)}`));
      svg.append(bar);
    });
  });
  const made = figure(title, svg);
  made.append(...names.map((name, part) => element("span", name, `legend ${PARTS[part]}`)));
  return made;
}
