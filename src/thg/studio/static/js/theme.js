// Light or dark, before the first paint: the user's own choice, else the system's.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => localStorage.getItem("thg-theme");
  const apply = () => { root.dataset.theme = stored() ?? (system.matches ? "dark" : "light"); };
  apply();
  system.addEventListener("change", () => { apply(); show(); });

  function show() {
    document.getElementById("theme")?.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
  }

  addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme")?.addEventListener("click", () => {
      localStorage.setItem("thg-theme", root.dataset.theme === "dark" ? "light" : "dark");
      apply();
      show();
    });
  });
})();
