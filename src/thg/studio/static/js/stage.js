// The stage: both sides with their progress and numbers, and the three views of them.

import { Difference, Lightbox, Swipe } from "./views.js";
import { percent } from "./budget.js";
import { previewOf } from "./media.js";
import { Tiles } from "./tiles.js";

const $ = (id) => document.getElementById(id);
const LABELS = { plain: "Plain CFG", thg: "thg", fewer: "Plain CFG, fewer steps" };

export const decibels = (value) => (value === null ? "identical" : `${value.toFixed(1)} dB`);

export function meanPsnr(values) {
  const finite = values.filter((value) => value !== null);
  return finite.length ? finite.reduce((sum, value) => sum + value, 0) / finite.length : null;
}

class Pane {
  constructor(side) {
    this.side = side;
    this.element = $(`pane-${side}`);
    this.progress = this.element.querySelector("progress");
    this.count = this.element.querySelector(".count");
    this.empty = this.element.querySelector(".empty");
    this.tiles = new Tiles(this.element.querySelector(".tiles"));
  }

  number(name, ...content) {
    this.element.querySelector(`[data-number="${name}"]`).replaceChildren(...content);
  }

  begin(count) {
    this.empty.hidden = true;
    this.current = false; // does it show this run, or still the one before?
    this.progress.value = 0;
    this.count.textContent = "waiting";
    this.started = null;
    this.tiles.waiting(count);
    for (const name of ["nfe", "seconds", "psnr"]) this.number(name, "–");
  }

  step({ step, of, previews }) {
    this.progress.value = step / of;
    this.started ??= { step, at: performance.now() };
    const each = (performance.now() - this.started.at) / (step - this.started.step);
    const left = Math.round(((of - step) * each) / 1000);
    this.count.textContent = `step ${step} of ${of}${left >= 1 && Number.isFinite(left) ? `, ${left} s left` : ""}`;
    if (!previews) return;
    this.current = true;
    this.tiles.preview(previews.map(previewOf), `${LABELS[this.side]}, step ${step}`);
  }

  done(side, prompt) {
    this.empty.hidden = true;
    this.current = true;
    this.progress.value = 1;
    this.count.textContent = side.remembered ? "reused" : "done";
    this.tiles.show(side.items, `${LABELS[this.side]}: ${prompt}`);
    this.element.querySelector('[data-name="psnr"]').textContent = side.items[0].kind === "audio" ? "SNR" : "PSNR";
    this.number("nfe", String(side.nfe));
    this.number("seconds", side.seconds.toFixed(2), ...(side.remembered ? [small(" earlier")] : []));
    if (this.side === "plain") this.number("psnr", small("reference"));
  }

  psnr(values, items, prompt) {
    this.number("psnr", decibels(meanPsnr(values)), ...(values.length > 1 ? [small(" on average")] : []));
    if (values.length > 1) this.tiles.show(items, `${LABELS[this.side]}: ${prompt}`, values.map(decibels));
  }

  stopped() {
    this.tiles.idle();
    if (this.progress.value < 1) this.count.textContent = "stopped";
    if (this.current) return;
    this.tiles.clear();
    this.empty.hidden = false;
  }
}

function small(text) {
  return Object.assign(document.createElement("small"), { textContent: text });
}

export const worst = (errors) => percent(Math.max(...errors));

// Remarks on a comparison.
export function remark({ sides, note, estimated_error, plan }) {
  const saved = (name) => 1 - sides.thg[name] / sides.plain[name];
  const slow = !sides.plain.remembered && saved("seconds") < saved("nfe") / 2;
  const target = plan?.error ? `, for a target of ${percent(plan.error)}` : "";
  const estimate = estimated_error ? `Estimated difference from plain CFG: ${worst(estimated_error)}${target}.` : "";
  const why = "Less time was saved than evaluations: the network is small, or the machine is busy.";
  return [note && `${note}.`, estimate, slow ? why : ""].filter(Boolean).join(" ");
}

export class Stage {
  constructor() {
    this.panes = { plain: new Pane("plain"), thg: new Pane("thg"), fewer: new Pane("fewer") };
    this.swipe = new Swipe();
    this.difference = new Difference();
    this.lightbox = new Lightbox($("panes"));
    this.result = null;
    $("view").addEventListener("change", () => this.#view());
  }

  begin({ batch, fewer_steps }) {
    this.result = null;
    $("remark").textContent = "";
    this.#select("side");
    this.#view();
    this.#three(fewer_steps);
    for (const pane of Object.values(this.panes)) pane.begin(batch);
  }

  #three(wanted) {
    $("pane-fewer").hidden = !wanted;
    $("panes").classList.toggle("three", Boolean(wanted));
  }

  step(event) {
    this.panes[event.side].step(event);
  }

  side(name, side, prompt) {
    this.panes[name].done(side, prompt);
  }

  stopped() {
    for (const pane of Object.values(this.panes)) pane.stopped();
  }

  // A finished comparison, fresh or from the history.
  show(result) {
    this.result = result;
    const { prompt } = result.settings;
    this.#three(result.sides.fewer);
    $("remark").textContent = remark(result);
    for (const [name, side] of Object.entries(result.sides)) this.panes[name].done(side, prompt);
    this.panes.thg.psnr(result.psnr, result.sides.thg.items, prompt);
    if (result.sides.fewer) this.panes.fewer.psnr(result.psnr_fewer, result.sides.fewer.items, prompt);
    this.#view();
  }

  #select(view) {
    document.querySelector(`input[name="view"][value="${view}"]`).checked = true;
  }

  #view() {
    const comparable = this.result?.sides.thg.items[0].kind === "image";
    for (const input of document.querySelectorAll('input[name="view"]')) {
      input.disabled = input.value !== "side" && !comparable;
      if (input.disabled && input.checked) this.#select("side");
    }
    const chosen = document.querySelector('input[name="view"]:checked').value;
    $("panes").hidden = chosen !== "side";
    $("swipe").hidden = chosen !== "swipe";
    $("difference").hidden = chosen !== "difference";
    if (chosen === "swipe") this.swipe.show(this.result.sides);
    if (chosen === "difference") this.difference.show(this.result.sides);
  }
}
