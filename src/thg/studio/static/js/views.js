// Swipe between both pictures, and the map of their difference.

import { fillRange } from "./budget.js";
import { Tiles } from "./tiles.js";

const $ = (id) => document.getElementById(id);

export class Swipe {
  constructor() {
    this.frame = $("swipe").querySelector(".frame");
    this.under = new Tiles(this.frame.querySelector(".under"));
    this.over = new Tiles(this.frame.querySelector(".over"));
    $("cut").addEventListener("input", () => this.frame.style.setProperty("--cut", `${$("cut").value}%`));
  }

  show({ plain, thg }) {
    this.under.show(plain.items, "Plain CFG");
    this.over.show(thg.items, "thg");
  }
}

async function pixels(item) {
  const bitmap = await createImageBitmap(item.blobs[0]);
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

// |a - b| per pixel (the largest of the channels), black to crimson to white.
function draw(canvas, a, b, gain) {
  canvas.width = a.width;
  canvas.height = a.height;
  canvas.classList.toggle("coarse-pixels", a.width <= 128);
  const map = new ImageData(a.width, a.height);
  let largest = 0;
  for (let i = 0; i < a.data.length; i += 4) {
    let apart = 0;
    for (let c = i; c < i + 3; c += 1) apart = Math.max(apart, Math.abs(a.data[c] - b.data[c]));
    largest = Math.max(largest, apart);
    const heat = Math.min(1, (apart * gain) / 255);
    const beyond = Math.max(0, heat - 0.5) * 2;
    map.data[i] = 255 * Math.min(1, heat * 2) * 0.86 + 255 * 0.14 * beyond;
    map.data[i + 1] = 20 * Math.min(1, heat * 2) + 235 * beyond;
    map.data[i + 2] = 60 * Math.min(1, heat * 2) + 195 * beyond;
    map.data[i + 3] = 255;
  }
  canvas.getContext("2d").putImageData(map, 0, 0);
  return largest;
}

export class Difference {
  constructor() {
    this.tiles = $("difference").querySelector(".tiles");
    this.pairs = [];
    $("gain").addEventListener("input", () => this.#draw());
    fillRange($("gain"));
  }

  async show({ plain, thg }) {
    const asked = (this.asked = thg);
    const pairs = await Promise.all(thg.items.map(async (item, i) => [await pixels(plain.items[i]), await pixels(item)]));
    if (asked !== this.asked) return;
    this.pairs = pairs;
    this.tiles.classList.toggle("four", pairs.length > 1);
    this.tiles.replaceChildren(...pairs.map(() => {
      const tile = Object.assign(document.createElement("div"), { className: "tile" });
      const canvas = document.createElement("canvas");
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", "Difference between plain CFG and thg");
      tile.append(canvas);
      return tile;
    }));
    this.#draw();
  }

  #draw() {
    const gain = 2 ** Number($("gain").value);
    fillRange($("gain"));
    $("gain-value").textContent = `${gain}×`;
    const canvases = this.tiles.querySelectorAll("canvas");
    const largest = Math.max(0, ...this.pairs.map(([a, b], i) => draw(canvases[i], a, b, gain)));
    $("largest").textContent = `The largest difference is ${largest} of 255 grey levels.`;
  }
}
