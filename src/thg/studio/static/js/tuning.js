// Tuning: the server compares runs of this model with plain ones, and the page shows how far it is and what was reached.

import { stream } from "./api.js";
import { runPart } from "./settings.js";

const $ = (id) => document.getElementById(id);

export class Tuning {
  // `current()` is the settings and the target; `reached()` is called when there is a result.
  constructor(model, current, reached) {
    Object.assign(this, { current, reached, running: null });
    $("tune-prompts").value = model.tuning.join("\n");
    $("tune").addEventListener("click", () => (this.running ? this.running.abort() : this.run()));
  }

  async run() {
    const { settings, error } = this.current();
    const prompts = $("tune-prompts").value.split("\n").map((line) => line.trim()).filter(Boolean);
    if (!prompts.length) return this.#say("Write prompts, one per line: sixteen say something about the worst of them.", true);
    this.running = new AbortController();
    this.#show(true);
    this.#say("waiting for the server");
    try {
      const request = { ...runPart(settings), strength: null, error, prompts };
      await stream("/api/tune", request, (name, data) => this.#hear(name, data), this.running.signal);
      this.reached();
    } catch (failure) {
      this.#say(this.running.signal.aborted ? "stopped" : failure.message, !this.running.signal.aborted);
    } finally {
      this.running = null;
      this.#show(false);
    }
    return undefined;
  }

  #hear(name, data) {
    if (name === "queued") this.#say(data.ahead ? `${data.ahead} ahead of you` : "starting");
    if (name === "tuning") {
      this.started ??= { done: data.done, at: performance.now() };
      const each = (performance.now() - this.started.at) / (data.done - this.started.done);
      const left = Math.ceil(((data.of - data.done) * each) / 1000);
      $("tune-progress").value = data.done / data.of;
      this.#say(`batch ${data.done} of at most ${data.of}${Number.isFinite(left) ? `, at most ${left} s left` : ""}`);
    }
    if (name === "done") this.#say(data.kept ? data.sentence : `${data.sentence} Take more steps, or a target further from plain CFG.`);
  }

  #show(running) {
    this.started = null;
    $("tune-progress").hidden = !running;
    $("tune-progress").value = 0;
    $("tune").textContent = running ? "Stop" : "Tune";
  }

  #say(text, bad = false) {
    $("tuned").textContent = text;
    $("tuned").classList.toggle("bad", bad);
  }
}
