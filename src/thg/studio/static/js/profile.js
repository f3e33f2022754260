// The profile tab: what calibration has measured, and the grid that a ratio of errors gives.

import { get, post } from "./api.js";
import { Chart } from "./chart.js";
import { fillRange, times } from "./budget.js";
import { planPart } from "./settings.js";

const $ = (id) => document.getElementById(id);

export class ProfileTab {
  // `use(rho)` when the user wants to compare with this plan; `settings()` are the current ones.
  constructor(hasProfile, settings, use) {
    this.settings = settings;
    $("no-profile").hidden = hasProfile;
    $("panel-profile").querySelector(".card").hidden = !hasProfile;
    this.hasProfile = hasProfile;
    $("rho").addEventListener("input", () => this.#ask());
    addEventListener("resize", () => this.profile && !$("panel-profile").hidden && this.#ask());
    $("use-rho").addEventListener("click", () => use(this.rho));
  }

  // The slider is logarithmic, from 0.1 to 10.
  get rho() {
    return Number((10 ** (Number($("rho").value) / 100)).toPrecision(3));
  }

  async open() {
    if (!this.hasProfile) return;
    if (!this.profile) {
      this.profile = await get("/api/profile");
      $("rho").value = Math.round(100 * Math.log10(this.profile.rho));
    }
    const { about } = this.profile;
    $("profile-about").textContent =
      `Measured on ${about.model}: ${about.scheduler}, ${about.steps} steps, guidance ${about.guidance_scale}, ` +
      `${about.samples} samples, ${about.date}. Shown for guidance ${this.settings().guidance_scale}; ` +
      "the shade is two standard deviations.";
    this.bounds ??= new Chart($("chart-bounds"), "Error bound of one step");
    this.rates ??= new Chart($("chart-rates"), "Norm of the derivative in time");
    await this.#ask();
  }

  async #ask() {
    fillRange($("rho"));
    $("rho-value").textContent = this.rho.toPrecision(3);
    this.asking?.abort();
    const asking = (this.asking = new AbortController());
    const { about, bounds, rates } = this.profile;
    const strength = this.settings().guidance_scale - 1;
    const scaled = ({ mean, std }) => ({ mean: mean.map((v) => v * strength), std: std.map((v) => v * strength) });
    let plan = null;
    try {
      const asked = { ...planPart(this.settings()), steps: about.steps, plan: { kind: "profile", rho: this.rho } };
      plan = await post("/api/plan", asked, asking.signal);
      $("profile-nfe").textContent = plan.nfe;
      $("profile-cfg").textContent = `of ${plan.cfg_nfe}`;
      $("profile-speedup").textContent = times(plan.speedup);
      $("profile-error").textContent = "";
    } catch (error) {
      if (asking.signal.aborted) return;
      $("profile-error").textContent = error.message;
    }
    this.bounds.draw({ tortoise: bounds.tortoise, hare: scaled(bounds.hare) }, plan);
    this.rates.draw(rates, plan);
  }
}
