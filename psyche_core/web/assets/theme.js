// Runs before anything is painted, so that a chosen theme does not flash. Classic script: modules run later.
(() => {
  try {
    const chosen = localStorage.getItem("psyche-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // no storage: the system's theme
  }
})();
