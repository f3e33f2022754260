// The page as a whole: settings in, plans and pictures out.

import { get, stream } from "./api.js";
import { Budget } from "./budget.js";
import { Downloads, save } from "./downloads.js";
import { Form } from "./form.js";
import { History } from "./history.js";
import { received } from "./media.js";
import { metadataOf } from "./metadata.js";
import { offerModels } from "./models.js";
import { ProfileTab } from "./profile.js";
import { fromLink, fromMetadata, toLink } from "./settings.js";
import { grid } from "./sheet.js";
import { Stage } from "./stage.js";
import { Start } from "./start.js";
import { wireTabs } from "./tabs.js";
import { Tuning } from "./tuning.js";

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
    this.start = new Start(model, this.settings, (settings) => this.adopt(settings), toast);
    this.tuning = new Tuning(model, () => ({ settings: this.settings, error: this.budget.error }), () => this.adopt({ plan: { kind: "tuned" } }));
    this.profile = new ProfileTab(model.profile, () => this.settings, (rho) => this.useRho(rho));
    this.open = wireTabs((name) => (name === "profile" ? this.profile.open().catch((error) => toast(error.message)) : null));
    $("settings").addEventListener("submit", (event) => { event.preventDefault(); this.generate(); });
    $("cancel").addEventListener("click", () => this.running?.abort());
    $("xy-run").addEventListener("click", () => this.sheet());
    addEventListener("hashchange", () => this.followLink());
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => { event.preventDefault(); this.dropped(event); });
  }

  async begin() {
    this.downloads.show(null);
    await Promise.all([this.budget.refresh(this.settings), this.history.load(), offerModels(this.model, say)]);
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
    if (kind === "tuned") {
      this.settings.plan = { kind };
      $("tuning").open = true;
    }
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
    if ($("live").checked && this.budget.plan && !makesSheet()) this.runSoon();
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
    this.adopt(fromLink(location.hash, this.model));
    this.showKnown();
  }

  // A picture that thg has made brings its settings; another one, or any that is dropped on its place, is a start.
  async dropped({ target, dataTransfer: { files: [file] } }) {
    const about = file && !target.closest?.("#start") && (await metadataOf(file).catch(() => null));
    if (!about) return this.start.take(file);
    this.adopt(fromMetadata(about, this.model));
    const from = about.image ? ` It was made from ${about.image}: drop that, too.` : "";
    return toast((about.model === this.model.name ? "These are the settings of that picture." : `These are the settings of that picture, which was made with ${about.model}.`) + from);
  }

  adopt(settings) {
    Object.assign(this.settings, settings);
    this.form.show();
    this.start.show();
    this.linked();
    return this.replan();
  }

  showKnown() {
    const known = this.history.matching(this.settings);
    if (known) this.show(known);
  }

  recall(result) {
    Object.assign(this.settings, { image: null, image_name: "", strength: null }, structuredClone(result.settings));
    this.form.show();
    this.start.show();
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

  // A run for each pair of steps and targets with the same seed; one sheet of thg's pictures. The settings stay.
  async sheet() {
    const numbers = (id) => $(id).value.split(/[ ,]+/).filter(Boolean).map(Number);
    const [steps, targets] = [numbers("xy-steps"), numbers("xy-targets")];
    const valid = [...steps, ...targets].every((value) => value > 0) && steps.every(Number.isInteger) && steps.length && targets.length;
    if (!valid || !$("settings").reportValidity()) return toast("Write numbers with spaces between them, such as 20 28 50.");
    const { steps: usual, batch, plan } = this.settings;
    const results = [];
    $("xy-run").disabled = true;
    try {
      for (const target of targets) {
        results.push([]);
        for (const count of steps) {
          await this.adopt({ steps: count, batch: 1, plan: { ...this.model.default_plan, error: target / 100 } });
          const result = await this.generate();
          if (!result) return undefined; // cancelled, or failed with a message
          results.at(-1).push(result);
        }
      }
    } finally {
      await this.adopt({ steps: usual, batch, plan });
      $("xy-run").disabled = false;
    }
    return save(await grid(results, steps, targets.map((target) => `${target} %`)), `sheet-${this.settings.seed}.png`);
  }

  async generate() {
    if (!$("settings").reportValidity()) return undefined;
    if ($("reroll").checked && !makesSheet()) this.form.roll();
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
      await stream("/api/runs", result.settings, (name, data) => running === this.running && this.hear(name, data, result), running.signal);
      if (running !== this.running) return undefined;
      this.show(result);
      say(verdict(result.sides));
      await this.history.add(result);
      return result;
    } catch (error) {
      if (running !== this.running) return undefined;
      this.stage.stopped();
      const { aborted } = running.signal;
      say(aborted ? "cancelled" : error.message, !aborted);
      return undefined;
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

const makesSheet = () => $("xy-run").disabled;

const verdict = ({ plain, thg }) =>
  thg.nfe < plain.nfe
    ? `done: ${thg.nfe} evaluations instead of ${plain.nfe}`
    : `done: nothing was saved, all ${plain.nfe} evaluations are needed for this target at these steps`;

const gridOf = ({ plan }) => ({
  of: plan.steps, coarse: plan.coarse, skips: plan.skips, cutoff: plan.cutoff === plan.steps ? null : plan.cutoff, boost: plan.boost, hare_order: plan.hare_order, corrector: plan.corrector, slope: plan.slope,
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

// The dot in the top bar: is the server there? When it is back, so is the page.
function connected(model) {
  const named = model && $("models").hidden ? `${model.name} · ${model.device}` : model?.device;
  $("model-name").textContent = named ?? "the studio does not answer";
  $("model").classList.toggle("ready", Boolean(model));
  $("model").classList.toggle("away", !model);
}

const pause = (seconds) => new Promise((resolve) => { setTimeout(resolve, 1000 * seconds); });

async function answer() {
  for (let tries = 0; ; tries += 1) {
    try {
      const model = await get("/api/model");
      connected(model);
      return { model, tries };
    } catch (error) {
      connected(null);
      if (!document.body.dataset.ready) say(error.message, true);
      await pause(1);
    }
  }
}

async function watch(page) {
  for (;;) {
    await pause(3);
    const { model, tries } = await answer();
    if (model.key !== page.model.key) location.assign("/");
    if (tries || page.budget.unanswered) {
      await page.budget.refresh(page.settings);
      say("");
    }
  }
}

const page = new Page((await answer()).model);
await page.begin();
connected(page.model);
document.body.dataset.ready = "true";
watch(page);
