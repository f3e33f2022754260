// The page as a whole: settings in, plans and pictures out.

import { get, run } from "./api.js";
import { Budget } from "./budget.js";
import { Downloads } from "./downloads.js";
import { Form } from "./form.js";
import { History } from "./history.js";
import { received } from "./media.js";
import { ProfileTab } from "./profile.js";
import { fromLink, toLink } from "./settings.js";
import { Stage } from "./stage.js";
import { wireTabs } from "./tabs.js";

const $ = (id) => document.getElementById(id);

class Page {
  constructor(model) {
    this.model = model;
    this.settings = fromLink(location.hash, model);
    this.running = null;
    this.stage = new Stage();
    this.downloads = new Downloads(toast);
    this.history = new History((result) => this.recall(result));
    this.budget = new Budget({
      moved: (error) => this.slide(error),
      edited: (coarse) => this.edit(coarse),
      drawn: (plan) => this.planned(plan),
    });
    this.form = new Form(model, this.settings, (name, value) => this.changed(name, value));
    this.profile = new ProfileTab(model.profile, () => this.settings, (rho) => this.useRho(rho));
    this.open = wireTabs((name) => (name === "profile" ? this.profile.open().catch((error) => toast(error.message)) : null));
    $("settings").addEventListener("submit", (event) => { event.preventDefault(); this.generate(); });
    $("cancel").addEventListener("click", () => this.running?.abort());
    addEventListener("hashchange", () => this.followLink());
  }

  async begin() {
    this.downloads.show(null);
    await Promise.all([this.budget.refresh(this.settings), this.history.load()]);
    this.showKnown();
  }

  // -- settings

  changed(name, value) {
    if (name === "kind") this.choosePlan(value);
    if (name === "plan") this.settings.plan = { ...this.knownPlan(), ...value };
    this.linked();
    const affectsPlan = ["kind", "plan", "steps", "scheduler", "guidance_scale"].includes(name);
    if (affectsPlan) this.replan();
  }

  choosePlan(kind) {
    const plan = this.budget.plan;
    const { error } = this.budget;
    if (kind === "default") this.settings.plan = { ...this.model.default_plan, error };
    if (kind === "profile") this.settings.plan = { kind, error };
    if (kind === "custom") this.settings.plan = { kind, ...(plan ? gridOf(plan) : { of: this.settings.steps, coarse: [0], hare_order: 2 }) };
    if (kind === "paper") {
      this.settings.plan = { kind, preset: this.form.preset.name };
      this.settings.steps = this.form.preset.steps;
      this.form.show();
    }
    this.form.showPlan();
  }

  slide(error) {
    const { kind, hare_order, corrector } = this.settings.plan;
    this.settings.plan = kind === "profile" ? { kind, error } : { kind: "default", error, ...(kind === "default" && { hare_order, corrector }) };
    this.form.showPlan();
    this.linked();
    this.replan();
  }

  // The plan to change: a custom grid that was stretched for this run, as it is drawn; else what the settings say.
  knownPlan() {
    const { plan } = this.settings;
    const drawn = this.budget.plan;
    return plan.kind === "custom" && drawn && plan.of !== drawn.calls ? { kind: "custom", ...gridOf(drawn) } : plan;
  }

  edit(coarse) {
    const known = this.settings.plan.kind === "custom" ? this.knownPlan() : gridOf(this.budget.plan);
    this.settings.plan = { ...known, kind: "custom", coarse };
    this.form.showPlan();
    this.linked();
    this.replan();
  }

  async replan() {
    await this.budget.refresh(this.settings);
    if ($("live").checked && this.budget.plan) this.runSoon();
  }

  planned(plan) {
    $("generate").disabled = !plan;
    if (plan) this.form.showDrawn(plan);
  }

  useRho(rho) {
    this.settings.plan = { kind: "profile", rho };
    this.settings.steps = this.profile.profile.about.steps;
    this.form.show();
    this.linked();
    this.replan();
    this.open("compare");
  }

  // -- the link

  linked() {
    history.replaceState(null, "", toLink(this.settings));
  }

  followLink() {
    Object.assign(this.settings, fromLink(location.hash, this.model));
    this.form.show();
    this.replan();
    this.showKnown();
  }

  showKnown() {
    const known = this.history.matching(this.settings);
    if (known) this.show(known);
  }

  recall(result) {
    Object.assign(this.settings, structuredClone(result.settings));
    this.form.show();
    this.linked();
    this.budget.refresh(this.settings);
    this.running?.abort();
    this.show(result);
  }

  show(result) {
    this.stage.show(result);
    this.downloads.show(result);
    this.history.current(result);
  }

  // -- runs

  runSoon() {
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.generate(), 250);
  }

  async generate() {
    if (!$("settings").reportValidity()) return;
    this.running?.abort();
    const running = (this.running = new AbortController());
    const result = { when: Date.now(), settings: structuredClone(this.settings), sides: {} };
    this.linked();
    this.downloads.show(null);
    this.stage.begin(result.settings);
    $("cancel").disabled = false;
    say("waiting for the server");
    if (matchMedia("(max-width: 1020px)").matches) $("stage").scrollIntoView({ behavior: "smooth", block: "start" });
    try {
      await run(result.settings, (name, data) => running === this.running && this.hear(name, data, result), running.signal);
      if (running !== this.running) return;
      this.show(result);
      say(`done: ${result.sides.thg.nfe} evaluations instead of ${result.sides.plain.nfe}`);
      await this.history.add(result);
    } catch (error) {
      if (running !== this.running) return;
      this.stage.stopped();
      const { aborted } = running.signal;
      say(aborted ? "cancelled" : error.message, !aborted);
    } finally {
      if (running === this.running) {
        this.running = null;
        $("cancel").disabled = true;
      }
    }
  }

  hear(name, data, result) {
    if (name === "queued") say(data.ahead ? `${data.ahead} ahead of you` : "starting");
    if (name === "warming") say("warming up (two steps, not counted)");
    if (name === "started") {
      result.plan = data;
      say("running");
    }
    if (name === "step") this.stage.step(data);
    if (name === "side") {
      const { side, ...rest } = data;
      result.sides[side] = { ...rest, items: rest.items.map(received) };
      this.stage.side(side, result.sides[side], result.settings.prompt);
    }
    if (name === "done") Object.assign(result, data);
  }
}

const gridOf = ({ plan }) => ({
  of: plan.steps, coarse: plan.coarse, cutoff: plan.cutoff === plan.steps ? null : plan.cutoff, boost: plan.boost, hare_order: plan.hare_order, corrector: plan.corrector,
});

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 4000);
}

try {
  const model = await get("/api/model");
  $("model-name").textContent = `${model.name} · ${model.device}`;
  $("model").classList.add("ready");
  await new Page(model).begin();
  document.body.dataset.ready = "true";
} catch (error) {
  say(error.message, true);
}
