// Swipe between both pictures, and the map of their difference.

import { fillRange } from "./budget.js";
import { showImage } from "./media.js";
import { Tiles } from "./tiles.js";

const $ = (id) => document.getElementById(id);

export class Swipe {
  constructor() {
    this.frame = $("swipe").querySelector(".frame");
    this.under = new Tiles(this.frame.querySelector(".under"));
    this.over = new Tiles(this.frame.querySelector(".over"));
    this.blades = this.frame.querySelector(".blades");
    $("cut").addEventListener("input", () => this.frame.style.setProperty("--cut", `${$("cut").value}%`));
    for (const name of ["pointerdown", "pointermove"]) this.frame.addEventListener(name, (event) => this.#follow(event));
  }

  // Each picture is cut at the same place. Where several are shown, the pointer counts within the one that it is on.
  show({ plain, thg }) {
    this.under.show(plain.items, "Plain CFG");
    this.over.show(thg.items, "thg");
    this.blades.style.cssText = this.over.element.style.cssText;
    $("cut").style.pointerEvents = thg.items.length > 1 ? "none" : "";
    this.blades.replaceChildren(...thg.items.map(() => {
      const tile = Object.assign(document.createElement("div"), { className: "tile" });
      tile.append(Object.assign(document.createElement("i"), { className: "blade" }));
      return tile;
    }));
  }

  #follow({ buttons, clientX, clientY }) {
    const boxes = [...this.blades.children].map((tile) => tile.getBoundingClientRect());
    const box = boxes.find(({ left, right, top, bottom }) => left <= clientX && clientX <= right && top <= clientY && clientY <= bottom);
    if (!buttons || boxes.length < 2 || !box) return;
    $("cut").value = (100 * (clientX - box.left)) / box.width;
    $("cut").dispatchEvent(new Event("input"));
  }
}

// One picture as large as the window allows. Arrow keys and clicks change between plain CFG and thg.
export class Lightbox {
  constructor(panes) {
    this.dialog = $("lightbox");
    this.image = this.dialog.querySelector("img");
    panes.addEventListener("click", ({ target }) => target.closest?.(".tile img") && !target.closest(".tile").querySelector(".player") && this.#open(target));
    this.dialog.addEventListener("click", () => this.#next());
    this.dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") this.#next();
    });
  }

  #open(image) {
    const tile = image.closest(".tile");
    const index = [...tile.parentElement.children].indexOf(tile);
    const shown = [...document.querySelectorAll(".pane:not([hidden])")].map((pane) => ({
      title: pane.querySelector("h3").textContent, item: pane.querySelectorAll(".tile")[index]?.item,
    }));
    this.pictures = shown.filter(({ item }) => item?.kind === "image");
    this.at = this.pictures.findIndex(({ item }) => item === tile.item) - 1;
    this.dialog.showModal();
    this.#next();
  }

  #next() {
    this.at = (this.at + 1) % this.pictures.length;
    const { title, item } = this.pictures[this.at];
    this.image.alt = title;
    this.dialog.querySelector("p").textContent = `${title} (click or arrow keys: the other one; Esc: close)`;
    showImage(this.image, item.blobs[0]);
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
    this.tiles.style.setProperty("--across", Math.ceil(Math.sqrt(pairs.length)));
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
