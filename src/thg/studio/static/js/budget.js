// The budget card: slider, strip, and what the plan costs. The server makes the plans; this draws them.

import { post } from "./api.js";
import { planPart } from "./settings.js";
import { Strip } from "./strip.js";

const $ = (id) => document.getElementById(id);
export const times = (speedup) => `${speedup.toFixed(2)}×`;

export function fillRange(input) {
  const share = (input.value - input.min) / (input.max - input.min);
  input.style.setProperty("--fill", `${100 * share}%`);
}

export class Budget {
  // `moved(share)` when the slider moves, `edited(coarse)` when the strip is edited, `drawn(plan)` when a plan is there.
  constructor({ moved, edited, drawn }) {
    this.plan = null;
    this.drawn = drawn;
    this.strip = new Strip($("strip"), edited);
    this.slider = $("budget");
    this.slider.addEventListener("input", () => {
      fillRange(this.slider);
      moved(this.slider.value / 100);
    });
    fillRange(this.slider);
  }

  // Asks for the plan of these settings; only the latest question counts.
  async refresh(settings) {
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    try {
      const plan = await post("/api/plan", planPart(settings), asking.signal);
      this.plan = plan;
      this.#draw(plan);
      this.drawn(plan);
    } catch (error) {
      if (asking.signal.aborted) return;
      this.plan = null;
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
    if (document.activeElement !== this.slider) {
      this.slider.value = Math.round((100 * plan.nfe) / plan.cfg_nfe);
      fillRange(this.slider);
    }
    this.slider.setAttribute("aria-valuetext", `${plan.nfe} of ${plan.cfg_nfe} evaluations`);
    this.strip.draw(plan);
  }
}
