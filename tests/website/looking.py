"""What a page looks like to the browser that shows it."""

__all__ = ["LOOK"]

LOOK = """async () => {
  if (window.MathJax?.startup) await MathJax.startup.promise;
  const all = (selector) => [...document.querySelectorAll(selector)];
  const raw = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode;
    if (!text.parentElement.closest("pre, code, script, style, noscript, mjx-container")
        && /\\$|\\\\[(\\[]|\\\\[a-z]{3}/.test(text.data)) raw.push(text.data.trim());
  }
  return {
    formulas: all(".math").length,
    typeset: all("mjx-container").length,
    errors: all("mjx-merror, [data-mml-node=merror], [data-mjx-error]").map((node) => node.textContent),
    raw,
    wider: document.documentElement.scrollWidth - innerWidth,
    broken: [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src),
  };
}"""
