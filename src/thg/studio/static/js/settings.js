// The settings of a comparison as one plain object, which is also what the server takes; and as a permalink.

const startingFrom = (model) => ({
  prompt: model.examples[0] ?? "",
  negative_prompt: "",
  seed: 0,
  batch: model.batch,
  steps: model.steps,
  guidance_scale: model.guidance_scale,
  scheduler: model.schedulers[0].name,
  width: null,
  height: null,
  fewer_steps: false,
  image: null,
  image_name: "",
  strength: null,
  plan: model.default_plan,
});

const WHOLE = ["seed", "batch", "steps", "width", "height"];
const TEXT = ["prompt", "negative_prompt", "scheduler"];
const PLAN = {
  default: ["error", "nfe", "hare_order", "corrector"],
  paper: ["preset"],
  profile: ["rho", "nfe", "error"],
  tuned: [],
  custom: ["of", "coarse", "skips", "cutoff", "boost", "hare_order", "corrector", "slope"],
};

// A picture to start from is not in the link.
export function toLink(settings) {
  const link = new URLSearchParams();
  for (const name of [...TEXT, ...WHOLE, "guidance_scale"]) {
    const value = settings[name];
    if (value !== null && value !== "") link.set(name, value);
  }
  if (settings.fewer_steps) link.set("fewer_steps", 1);
  link.set("plan", settings.plan.kind);
  for (const name of PLAN[settings.plan.kind]) {
    const value = settings.plan[name];
    if (value !== null && value !== undefined) link.set(name, Array.isArray(value) ? value.join(".") : value);
  }
  return `#${link}`;
}

// The settings of a permalink, over the initial ones. Invalid numbers are ignored; the server validates the rest.
export function fromLink(hash, model) {
  const link = new URLSearchParams(hash.replace(/^#/, ""));
  const settings = structuredClone(startingFrom(model));
  for (const name of TEXT) if (link.has(name)) settings[name] = link.get(name);
  for (const name of [...WHOLE, "guidance_scale"]) {
    if (link.has(name) && Number.isFinite(Number(link.get(name)))) settings[name] = Number(link.get(name));
  }
  settings.fewer_steps = link.get("fewer_steps") === "1";
  const kind = link.get("plan");
  if (!(kind in PLAN)) return settings;
  const plan = kind === "default" ? { ...model.default_plan } : { kind };
  if (kind === "default" && link.has("nfe")) delete plan.error; // a plan that is sized by its evaluations
  for (const name of PLAN[kind]) {
    if (!link.has(name)) continue;
    const text = link.get(name);
    if (name === "preset" || name === "skips") plan[name] = text;
    else if (name === "coarse") plan.coarse = text.split(".").map(Number);
    else plan[name] = Number(text);
  }
  if (kind === "custom" && !plan.coarse?.every(Number.isInteger)) return settings;
  if (kind === "paper" && !plan.preset) return settings;
  if (kind === "profile" && [plan.rho, plan.nfe, plan.error].filter((value) => value !== undefined).length !== 1) return settings;
  settings.plan = plan;
  return settings;
}

// The settings in the metadata of a picture, as commands and studio write it.
export function fromMetadata(about, model) {
  const settings = structuredClone(startingFrom(model));
  for (const name of [...TEXT, ...WHOLE, "guidance_scale"]) if (about[name] !== undefined && about[name] !== null) settings[name] = about[name];
  if (!model.schedulers.some(({ name }) => name === settings.scheduler)) settings.scheduler = model.schedulers[0].name;
  settings.batch = 1;
  if (about.plan) {
    const { steps, format, start, ...plan } = about.plan;
    settings.plan = { kind: "custom", of: steps, ...plan, cutoff: plan.cutoff === steps ? null : plan.cutoff };
  }
  return settings;
}

export const runPart = ({ steps, scheduler, guidance_scale, strength }) => ({ steps, scheduler, guidance_scale, strength });

export const planPart = (settings) => ({ ...runPart(settings), plan: settings.plan });
