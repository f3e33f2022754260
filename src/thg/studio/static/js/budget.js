// The budget card: slider, strip, and what the plan costs. The server makes the plans; this draws them.

import { Away, post } from "./api.js";
import { planPart } from "./settings.js";
import { Strip } from "./strip.js";

const $ = (id) => document.getElementById(id);
export const times = (speedup) => `${speedup.toFixed(2)}×`;

export function fillRange(input) {
  const share = (input.value - input.min) / (input.max - input.min);
  input.style.setProperty("--fill", `${100 * share}%`);
}

// The slider's scale: how far the result may be from plain CFG's, from 10 % to 0.01 %, logarithmic.
const errorAt = (position) => Number((10 ** (-1 - (3 * position) / 100)).toPrecision(2));
const positionOf = (error) => Math.round((100 * (-1 - Math.log10(error))) / 3);
export const percent = (error) => `${Number((100 * error).toPrecision(2))} %`;

export class Budget {
  // `moved(error)` when the slider moves, `edited(coarse)` when the strip is edited, `drawn(plan)` when a plan is there.
  constructor({ moved, edited, drawn }) {
    this.plan = null;
    this.drawn = drawn;
    this.strip = new Strip($("strip"), edited);
    this.slider = $("budget");
    this.slider.addEventListener("input", () => {
      fillRange(this.slider);
      moved(this.error);
    });
    fillRange(this.slider);
  }

  get error() {
    return errorAt(this.slider.value);
  }

  // Asks for the plan of these settings; only the latest question counts.
  async refresh(settings) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    try {
      const plan = await post("/api/plan", planPart(settings), asking.signal);
      if (asking.signal.aborted) return;
      this.plan = plan;
      this.unanswered = false;
      this.#draw(plan);
      this.drawn(plan);
    } catch (error) {
      if (asking.signal.aborted) return;
      this.plan = null;
      this.unanswered = error instanceof Away;
      $("strip").classList.add("stale");
      $("plan-error").textContent = error.message;
      $("plan-error").classList.remove("note");
      this.drawn(null);
    }
  }

  #draw(plan) {
    $("strip").classList.remove("stale");
    $("plan-error").textContent = plan.note;
    $("plan-error").classList.add("note");
    $("nfe").textContent = plan.nfe;
    $("cfg-nfe").textContent = `of ${plan.cfg_nfe}`;
    $("saved").textContent = `${Math.round(100 * (1 - plan.nfe / plan.cfg_nfe))} %`;
    $("speedup").textContent = times(plan.speedup);
    if (plan.error && document.activeElement !== this.slider) {
      this.slider.value = positionOf(plan.error);
      fillRange(this.slider);
    }
    const cost = `${plan.nfe} of ${plan.cfg_nfe} evaluations`;
    $("fidelity").textContent = plan.error ? percent(plan.error) : "–";
    $("cost").textContent = cost;
    this.slider.setAttribute("aria-valuetext", plan.error ? `within ${percent(plan.error)}, ${cost}` : cost);
    this.strip.draw(plan);
  }
}
