"use strict";
// Runs before anything is drawn, so that a page in another theme, or of all sections, never flashes up.
document.documentElement.classList.add("js");
try {
  const theme = localStorage.getItem("pytest-cudafork-theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch { /* some browsers keep nothing for files */ }
