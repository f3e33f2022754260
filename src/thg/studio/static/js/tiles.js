// A frame with one tile, or four for a batch.

import { elementsOf, freeUrls, showImage } from "./media.js";

export class Tiles {
  constructor(element) {
    this.element = element;
  }

  #prepare(count) {
    if (this.element.childElementCount === count) return;
    freeUrls(this.element);
    this.element.classList.toggle("four", count > 1);
    this.element.replaceChildren(...Array.from({ length: count }, () => {
      const tile = document.createElement("div");
      tile.className = "tile";
      return tile;
    }));
  }

  waiting(count) {
    this.#prepare(count);
    for (const tile of this.element.children) tile.classList.add("working");
  }

  idle() {
    for (const tile of this.element.children) tile.classList.remove("working");
  }

  // A picture that the next one will replace.
  preview(items, label) {
    this.#prepare(items.length);
    items.forEach((item, index) => {
      const tile = this.element.children[index];
      const image = tile.querySelector("img");
      if (image && tile.childElementCount === 1) showImage(image, item.blobs[0]);
      else this.#fill(tile, item, label);
    });
  }

  #fill(tile, item, label) {
    freeUrls(tile);
    tile.replaceChildren(...elementsOf(item, label));
  }

  show(items, label, badges = []) {
    this.#prepare(items.length);
    items.forEach((item, index) => {
      const tile = this.element.children[index];
      tile.classList.remove("working");
      const image = tile.querySelector("img");
      if (item.kind === "image" && image && !tile.querySelector(".player")) {
        showImage(image, item.blobs[0]);
        image.alt = label;
      } else {
        this.#fill(tile, item, label);
      }
      tile.querySelector(".badge")?.remove();
      if (badges[index]) tile.append(Object.assign(document.createElement("span"), { className: "badge", textContent: badges[index] }));
    });
  }
}
