// A frame with one tile, or several for a batch.

import { elementsOf, freeSounds, showImage } from "./media.js";

function put(tile, item, label) {
  if (tile.item === item) return;
  tile.item = item;
  const image = tile.querySelector("img");
  if (item.kind === "image" && image && !tile.querySelector(".player, audio")) {
    image.alt = label;
    showImage(image, item.blobs[0]);
  } else {
    freeSounds(tile);
    tile.replaceChildren(...elementsOf(item, label));
  }
}

function badge(tile, text) {
  tile.querySelector(".badge")?.remove();
  if (text) tile.append(Object.assign(document.createElement("span"), { className: "badge", textContent: text }));
}

export class Tiles {
  constructor(element) {
    this.element = element;
  }

  #prepare(count) {
    if (this.element.childElementCount === count) return;
    freeSounds(this.element);
    this.element.style.setProperty("--across", Math.ceil(Math.sqrt(count)));
    this.element.replaceChildren(...Array.from({ length: count }, () => {
      const tile = document.createElement("div");
      tile.className = "tile";
      return tile;
    }));
  }

  waiting(count) {
    this.#prepare(count);
    for (const tile of this.element.children) {
      tile.classList.add("working");
      badge(tile, "");
    }
  }

  idle() {
    for (const tile of this.element.children) tile.classList.remove("working");
  }

  clear() {
    freeSounds(this.element);
    this.element.replaceChildren();
  }

  // A picture that the next one will replace.
  preview(items, label) {
    this.#prepare(items.length);
    items.forEach((item, index) => put(this.element.children[index], item, label));
  }

  show(items, label, badges = []) {
    this.#prepare(items.length);
    this.idle();
    items.forEach((item, index) => {
      const tile = this.element.children[index];
      put(tile, item, label);
      badge(tile, badges[index]);
    });
  }
}
