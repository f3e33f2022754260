// The list of the last runs.

import { decibels, meanPsnr, worst } from "./stage.js";
import { showImage } from "./media.js";
import { all, forget, keep, KEPT } from "./store.js";
import { toLink } from "./settings.js";

const $ = (id) => document.getElementById(id);

export class History {
  constructor(chosen) {
    this.chosen = chosen;
    this.runs = [];
    $("forget").addEventListener("click", async () => {
      this.runs = [];
      await forget();
      this.#draw(); // as in add: what is shown is what a reload shows
    });
  }

  async load() {
    this.runs = await all();
    this.#draw();
  }

  async add(run) {
    this.runs.unshift(run);
    const dropped = this.runs.splice(KEPT);
    try {
      await keep(run, dropped);
    } finally {
      this.#draw(run); // what is shown is there after a reload, unless the browser keeps nothing
    }
  }

  // The last run with exactly these settings, if any.
  matching(settings) {
    const link = toLink(settings);
    const same = ({ image, strength }) => (image ?? null) === settings.image && (strength ?? null) === settings.strength;
    return this.runs.find((run) => toLink(run.settings) === link && same(run.settings));
  }

  current(run) {
    [...$("history").children].forEach((item, index) => {
      item.firstChild.setAttribute("aria-current", String(this.runs[index] === run));
    });
  }

  #draw(current = null) {
    $("history").replaceChildren(...this.runs.map((run) => this.#item(run)));
    this.current(current);
    const list = $("history");
    $("history-hint").textContent = list.scrollWidth > list.clientWidth ? `${this.runs.length}, scroll sideways for all` : "";
    $("forget").disabled = !this.runs.length;
  }

  #item(run) {
    const item = document.createElement("li");
    const button = Object.assign(document.createElement("button"), { type: "button" });
    const pair = Object.assign(document.createElement("span"), { className: "pair" });
    for (const name of ["plain", "thg"]) {
      const [first] = run.sides[name].items;
      const image = new Image();
      image.alt = "";
      showImage(image, first.picture ?? first.blobs[0]);
      pair.append(image);
    }
    const title = Object.assign(document.createElement("strong"), { textContent: run.settings.prompt });
    const psnr = decibels(meanPsnr(run.psnr));
    const estimate = run.estimated_error ? ` · est. ${worst(run.estimated_error)}` : "";
    const text = `${run.sides.thg.nfe} of ${run.sides.plain.nfe} · ${psnr}${estimate}`;
    const about = Object.assign(document.createElement("small"), { textContent: text });
    button.append(pair, title, about);
    button.addEventListener("click", () => this.chosen(run));
    item.append(button);
    return item;
  }
}
