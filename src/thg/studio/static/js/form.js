// The settings form: shows the settings, and tells when the user changes one.

const $ = (id) => document.getElementById(id);
const radio = (name) => document.querySelector(`input[name="${name}"]:checked`)?.value;
const setRadio = (name, value) => {
  const input = document.querySelector(`input[name="${name}"][value="${value}"]`);
  if (input) input.checked = true;
};
const number = (id) => ($(id).value === "" ? null : Number($(id).value));

const HINTS = {
  default: "As many evaluations as the fidelity needs.",
  profile: "Chosen from what was measured on this model.",
  tuned: "As measured on this model with this scheduler.",
  custom: "Your own grid: edit the steps on the strip.",
};

export class Form {
  // `changed(name)` is called after each change by the user, with the settings already up to date.
  constructor(model, settings, changed) {
    this.model = model;
    this.settings = settings;
    this.changed = changed;
    this.#fill();
    this.#listen();
    this.show();
  }

  #fill() {
    const { model } = this;
    for (const { name, label } of model.schedulers) $("scheduler").add(new Option(label, name));
    for (const preset of model.presets) $("preset").add(new Option(`${preset.name} (${preset.steps} steps)`, preset.name));
    $("steps").max = model.limits.steps;
    $("guidance").max = model.limits.guidance_scale;
    $("seed").max = model.limits.seed;
    for (const id of ["width", "height"]) $(id).max = model.limits.side;
    for (const id of ["prompt", "negative"]) $(id).maxLength = model.limits.prompt;
    $("negative-field").hidden = !model.negative_prompt;
    $("size-field").hidden = !model.sized;
    const profile = document.querySelector('input[name="kind"][value="profile"]');
    profile.disabled = !model.profile;
    if (!model.profile) profile.parentElement.title = "Start the studio with --profile to use this";
    for (const text of model.examples) {
      const chip = document.createElement("button");
      chip.type = "button";
      chip.textContent = text;
      chip.addEventListener("click", () => {
        this.settings.prompt = $("prompt").value = text;
        this.changed("prompt");
      });
      $("examples").append(chip);
    }
  }

  #listen() {
    const texts = { prompt: "prompt", negative: "negative_prompt" };
    for (const [id, name] of Object.entries(texts)) {
      $(id).addEventListener("input", () => this.#set(name, $(id).value));
    }
    const numbers = { seed: "seed", steps: "steps", guidance: "guidance_scale", width: "width", height: "height" };
    for (const [id, name] of Object.entries(numbers)) {
      $(id).addEventListener("input", () => {
        if ($(id).checkValidity() && (number(id) !== null || id === "width" || id === "height")) this.#set(name, number(id));
      });
    }
    $("scheduler").addEventListener("change", () => this.#set("scheduler", $("scheduler").value));
    $("batch").addEventListener("change", () => this.#set("batch", Number(radio("batch"))));
    $("fewer").addEventListener("change", () => this.#set("fewer_steps", $("fewer").checked));
    $("dice").addEventListener("click", () => this.roll());
    $("kind").addEventListener("change", () => this.changed("kind", radio("kind")));
    $("preset").addEventListener("change", () => this.changed("kind", "paper"));
    $("order").addEventListener("change", () => this.#setPlan("hare_order", Number(radio("order"))));
    $("cutoff").addEventListener("change", () => this.#setPlan("cutoff", number("cutoff")));
    $("boost").addEventListener("change", () => this.#setPlan("boost", number("boost") ?? 1));
    $("corrector").addEventListener("change", () => this.#setPlan("corrector", number("corrector") ?? 0));
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        $("settings").requestSubmit();
      }
    });
  }

  roll() {
    $("seed").value = crypto.getRandomValues(new Uint32Array(1))[0] % 1_000_000;
    this.#set("seed", number("seed"));
  }

  #set(name, value) {
    this.settings[name] = value;
    this.changed(name);
  }

  #setPlan(name, value) {
    this.changed("plan", { [name]: value });
  }

  get preset() {
    return this.model.presets.find((preset) => preset.name === $("preset").value);
  }

  // Puts the settings into the fields.
  show() {
    const { settings } = this;
    $("prompt").value = settings.prompt;
    $("negative").value = settings.negative_prompt;
    $("seed").value = settings.seed;
    $("steps").value = settings.steps;
    $("guidance").value = settings.guidance_scale;
    $("scheduler").value = settings.scheduler;
    $("width").value = settings.width ?? "";
    $("height").value = settings.height ?? "";
    setRadio("batch", settings.batch);
    $("fewer").checked = settings.fewer_steps;
    this.showPlan();
  }

  showPlan() {
    const { plan } = this.settings;
    setRadio("kind", plan.kind);
    $("kind-hint").textContent = HINTS[plan.kind] ?? "";
    $("preset").hidden = plan.kind !== "paper";
    if (plan.kind === "paper") $("preset").value = plan.preset;
    const ordered = plan.kind === "default" || plan.kind === "custom";
    for (const input of document.querySelectorAll('input[name="order"]')) input.disabled = !ordered;
    $("corrector").disabled = !ordered;
    for (const id of ["cutoff", "boost"]) $(id).disabled = plan.kind !== "custom" || plan.skips === "network";
  }

  // What the planner has chosen: the settings say only what differs from it. The field with the cursor is the user's.
  showDrawn({ plan, cutoff, calls }) {
    setRadio("order", plan.hare_order);
    const values = { corrector: plan.corrector, boost: plan.boost, cutoff: cutoff < calls ? cutoff : "" };
    for (const [id, value] of Object.entries(values)) {
      if (document.activeElement !== $(id)) $(id).value = value;
    }
  }
}
