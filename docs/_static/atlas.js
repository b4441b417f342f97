// The search of the atlas: a row stays where each word stands in it. The address may ask: atlas.html?q=gemma
(() => {
  "use strict";

  document.addEventListener("DOMContentLoaded", () => {
    const box = document.querySelector(".atlas-search");
    if (!box) return;
    const field = box.querySelector("input");
    const rows = [...document.querySelectorAll("table.atlas tbody tr")];
    const texts = rows.map((row) => row.textContent.toLowerCase());

    function search() {
      const words = field.value.toLowerCase().split(/[\s,]+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, place) => {
        row.hidden = !words.every((word) => texts[place].includes(word));
        shown += !row.hidden;
      });
      box.querySelector("[role=status]").textContent = `${shown} of ${rows.length} classes`;
    }

    field.value = new URLSearchParams(location.search).get("q") ?? "";
    field.addEventListener("input", search);
    box.hidden = false;
    search();
  });
})();
