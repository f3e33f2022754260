// The grid as a strip: one mark per step, the branch with the prompt above, the one without it below. A click switches an
// evaluation, dragging one moves it, dragging from an empty step paints. With the keyboard: arrows walk, space switches.

export class Strip {
  // `edited(coarse)` is called with the new grid after each edit by the user.
  constructor(element, edited) {
    this.element = element;
    this.edited = edited;
    this.marks = [];
    this.on = [];
    this.cutoff = 0;
    this.focused = 0;
    element.addEventListener("pointerdown", (event) => this.#grab(event));
    element.addEventListener("keydown", (event) => this.#key(event));
  }

  draw(plan) {
    this.on = [...plan.evaluates];
    this.cutoff = plan.cutoff;
    this.skips = plan.skips;
    if (this.marks.length !== plan.calls) this.#build(plan.calls);
    this.#paint();
  }

  #build(calls) {
    this.element.style.setProperty("--marks", calls <= 75 ? calls : Math.ceil(calls / Math.ceil(calls / 75)));
    this.element.style.setProperty("--narrow", calls <= 28 ? calls : Math.ceil(calls / Math.ceil(calls / 28)));
    this.focused = Math.min(this.focused, calls - 1);
    this.marks = Array.from({ length: calls }, (_, index) => {
      const mark = document.createElement("button");
      mark.type = "button";
      mark.className = "mark";
      mark.dataset.index = index;
      for (const name of ["t", "h"]) mark.append(Object.assign(document.createElement("i"), { className: name }));
      return mark;
    });
    this.element.replaceChildren(...this.marks);
  }

  #paint() {
    this.marks.forEach((mark, index) => {
      const guided = index < this.cutoff;
      const state = !guided ? "no guidance" : this.on[index] ? "evaluated" : "predicted";
      mark.classList.toggle("unguided", !guided);
      mark.classList.toggle("skipped", this.skips === "network" && !this.on[index]);
      mark.setAttribute("aria-pressed", String(guided && this.on[index]));
      mark.setAttribute("aria-disabled", String(!guided || index === 0));
      mark.setAttribute("aria-label", `step ${index + 1}: ${state}`);
      mark.title = `step ${index + 1}: ${state}`;
      mark.tabIndex = index === this.focused ? 0 : -1;
    });
  }

  #editable(index) {
    return index > 0 && index < this.cutoff;
  }

  #finish() {
    this.#paint();
    this.edited(this.on.flatMap((evaluated, index) => (evaluated ? [index] : [])));
  }

  #grab(event) {
    const start = this.#under(event);
    if (start === null || event.button !== 0) return;
    this.focused = start;
    let held = start;
    let dragged = false;
    const moving = this.on[start];
    const before = [...this.on];
    const move = (next) => {
      const index = this.#under(next);
      if (index === null || index === held || !this.#editable(start) || !this.#editable(index)) return;
      dragged = true;
      if (moving) {
        this.on = [...before];
        this.on[start] = false;
        this.on[index] = true;
      } else {
        for (let i = Math.min(held, index); i <= Math.max(held, index); i += 1) this.on[i] = true;
      }
      held = index;
      this.#paint();
    };
    const stop = new AbortController();
    addEventListener("pointermove", move, { signal: stop.signal });
    addEventListener("pointercancel", () => { stop.abort(); this.on = before; this.#paint(); }, { signal: stop.signal });
    addEventListener("pointerup", () => {
      stop.abort();
      if (!dragged) {
        if (!this.#editable(start)) return;
        this.on[start] = !this.on[start];
      }
      this.#finish();
    }, { signal: stop.signal });
  }

  #under(event) {
    const mark = document.elementFromPoint(event.clientX, event.clientY)?.closest(".mark");
    return mark && this.element.contains(mark) ? Number(mark.dataset.index) : null;
  }

  #key(event) {
    this.focused = Number(event.target.closest(".mark").dataset.index);
    const last = this.marks.length - 1;
    const target = { ArrowRight: this.focused + 1, ArrowLeft: this.focused - 1, Home: 0, End: last }[event.key];
    if (target !== undefined) {
      event.preventDefault();
      this.focused = Math.max(0, Math.min(last, target));
      this.#paint();
      this.marks[this.focused].focus();
    } else if ((event.key === " " || event.key === "Enter") && this.#editable(this.focused)) {
      event.preventDefault();
      this.on[this.focused] = !this.on[this.focused];
      this.#finish();
    }
  }
}
