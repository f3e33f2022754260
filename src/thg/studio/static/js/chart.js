// A line chart with a logarithmic axis: tortoise and hare over the steps, and the grid as ticks below.

const SPACE = "http://www.w3.org/2000/svg";
const BOX = { height: 266, left: 44, right: 68, top: 10, bottom: 44 };
const NARROWEST = 300;

function make(name, attributes, text) {
  const element = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

// The values on the axis: powers of ten, and 2 and 5 times them where there are few.
function labelled(low, high) {
  const factors = high - low > 2 ? [1] : [1, 2, 5];
  const values = [];
  for (let power = Math.floor(low); power <= high; power += 1) {
    values.push(...factors.map((factor) => Number((factor * 10 ** power).toPrecision(1))));
  }
  return values.filter((value) => value >= 10 ** low && value <= 10 ** high);
}

export class Chart {
  constructor(container, title) {
    this.container = container;
    this.svg = make("svg", { role: "img", "aria-label": title });
    container.replaceChildren(Object.assign(document.createElement("h3"), { textContent: title }), this.svg);
  }

  // series: {tortoise: {mean, std}, hare: {mean, std}}; plan: what the server says of the grid, or null.
  draw(series, plan) {
    const width = Math.max(NARROWEST, this.container.clientWidth);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${BOX.height}`);
    const right = width - BOX.right;
    const steps = series.tortoise.mean.length + 1;
    const all = Object.values(series).flatMap(({ mean }) => mean).filter((value) => value > 0);
    const low = Math.floor(Math.log10(Math.min(...all)) * 2) / 2;
    const high = Math.max(low + 0.5, Math.ceil(Math.log10(Math.max(...all)) * 2) / 2);
    const clamp = (value) => Math.min(Math.max(value, 10 ** low), 10 ** high);
    const x = (step) => BOX.left + ((right - BOX.left) * (step + 0.5)) / steps;
    const tall = BOX.height - BOX.top - BOX.bottom;
    const y = (value) => BOX.top + tall * (1 - (Math.log10(clamp(value)) - low) / (high - low));
    const parts = [];
    for (const value of labelled(low, high)) {
      parts.push(make("line", { x1: BOX.left, x2: right, y1: y(value), y2: y(value), class: "gridline" }));
      parts.push(make("text", { x: BOX.left - 8, y: y(value) + 4, "text-anchor": "end" }, String(value)));
    }
    const floor = BOX.height - BOX.bottom;
    if (plan) parts.push(...this.#grid(plan, floor, right));
    for (const [name, { mean, std }] of Object.entries(series)) {
      const upper = mean.map((value, i) => [x(i + 0.5), y(value + 2 * std[i])]);
      const lower = mean.map((value, i) => [x(i + 0.5), y(value - 2 * std[i])]).reverse();
      parts.push(make("path", { d: `${path([...upper, ...lower])}Z`, class: `${name} band` }));
      parts.push(make("path", { d: path(mean.map((value, i) => [x(i + 0.5), y(value)])), class: `${name} line` }));
      parts.push(make("text", { x: right + 8, y: y(mean.at(-1)) + 4, class: name }, name));
    }
    for (let step = 0; step < steps; step += Math.max(1, Math.round((steps * 70) / width))) {
      parts.push(make("text", { x: x(step), y: BOX.height - 8, "text-anchor": "middle" }, String(step + 1)));
    }
    parts.push(make("text", { x: right + 8, y: BOX.height - 8 }, "step"));
    this.svg.replaceChildren(...parts);
  }

  #grid(plan, floor, right) {
    const width = (right - BOX.left) / plan.calls;
    return plan.evaluates.flatMap((evaluated, index) => {
      if (!evaluated) return [];
      const middle = BOX.left + width * (index + 0.5);
      return [
        make("line", { x1: middle, x2: middle, y1: BOX.top, y2: floor, class: "evaluated" }),
        make("rect", { x: middle - width * 0.36, y: floor + 5, width: width * 0.72, height: 10, rx: 2, class: "tick" }),
      ];
    });
  }
}
