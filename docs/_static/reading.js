// What helps to read a page: code that is copied by a button, and a look at the equation that a tag leads to.
(() => {
  "use strict";

  const here = document.currentScript.src;
  const chinese = () => document.documentElement.lang.startsWith("zh");

  // Only what is run is copied: of a session in Python the lines behind its prompts, of a command all.
  function copied(block) {
    const lines = block.innerText.replace(/\n$/, "").split("\n");
    const session = lines.filter((line) => /^(>>>|\.\.\.)( |$)/.test(line));
    return (session.length ? session.map((line) => line.slice(4)) : lines).join("\n");
  }

  function addButtons() {
    const blocks = ".view.numpy .highlight, .excerpt .highlight, article [class*='highlight-python'] .highlight";
    for (const block of document.querySelectorAll(blocks)) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = chinese() ? "复制" : "Copy";
      button.addEventListener("click", async () => {
        const code = block.querySelector("pre");
        try {
          await navigator.clipboard.writeText(copied(code));
          button.textContent = chinese() ? "已复制" : "Copied";
        } catch {
          getSelection().selectAllChildren(code); // where a page may not write to the clipboard, one key is left
        }
        setTimeout(() => (button.textContent = chinese() ? "复制" : "Copy"), 1500);
      });
      block.append(button);
    }
  }

  // The list of pages stays where its reader left it, and where that hides this page, moves as far as it must.
  function keepPlace() {
    const list = document.querySelector(".sidebar-scroll");
    const current = list?.querySelector(".current-page");
    if (!current) return;
    list.style.scrollBehavior = "auto"; // at once: the theme would glide
    try {
      list.scrollTop = Number(sessionStorage.getItem("sidebar"));
      addEventListener("pagehide", () => sessionStorage.setItem("sidebar", list.scrollTop));
    } catch {
      // a reader who allows no storage begins at the top
    }
    const { top, bottom } = current.firstElementChild.getBoundingClientRect();
    const frame = list.getBoundingClientRect();
    if (top < frame.top) list.scrollTop -= frame.top - top;
    if (bottom > frame.bottom) list.scrollTop += bottom - frame.bottom;
  }

  const preview = document.createElement("div");
  preview.className = "preview";
  preview.setAttribute("role", "tooltip");
  preview.id = "preview";
  preview.hidden = true;
  let wanted = null;

  // A script, since a page that is opened as a file may load nothing else.
  let loading = null;
  const formulas = () =>
    (loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL("formulas.js", here).href;
      script.onload = () => resolve(window.formulas);
      script.onerror = reject;
      document.head.append(script);
    }));

  async function show(link) {
    wanted = link;
    try {
      const formula = (await formulas())[link.textContent];
      if (!formula || wanted !== link) return;
      preview.textContent = `\\[${formula}\\]`;
      await window.MathJax.startup.promise;
      window.MathJax.typesetClear([preview]);
      await window.MathJax.typesetPromise([preview]);
    } catch {
      return; // a formula that is not typeset is no help
    }
    if (wanted !== link) return;
    preview.hidden = false;
    const at = link.getBoundingClientRect();
    const left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - preview.offsetWidth - 8));
    const above = at.top - preview.offsetHeight - 6;
    preview.style.left = `${left}px`;
    preview.style.top = `${above > 60 ? above : at.bottom + 6}px`;
    link.setAttribute("aria-describedby", preview.id);
  }

  function hide() {
    wanted?.removeAttribute("aria-describedby");
    wanted = null;
    preview.hidden = true;
  }

  function addPreviews() {
    document.body.append(preview);
    for (const link of document.querySelectorAll("a.tag")) {
      link.addEventListener("mouseenter", () => show(link));
      link.addEventListener("focus", () => show(link));
      link.addEventListener("mouseleave", hide);
      link.addEventListener("blur", hide);
    }
    document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
    document.addEventListener("scroll", hide, { passive: true });
  }

  document.addEventListener("DOMContentLoaded", () => {
    keepPlace();
    addButtons();
    addPreviews();
  });
})();
