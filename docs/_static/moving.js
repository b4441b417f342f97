// Figures that move. Each takes the place of its still picture, which stays where scripts are off.
(() => {
  "use strict";

  const { attention, dot, read, rotated, scoreGradient, slopes, softmax, stateStep } = window.attention;
  const SVG = "http://www.w3.org/2000/svg";
  const WORDS = ["the", "cat", "ran", "it"];
  const SCORES = [0, 2, 1, 0]; // those of the course

  const CHINESE = {
    "a figure that moves": "会动的图", "a token:": "词元：", "action": "动作", "and divided:": "除以之后：", "animal": "动物",
    "begin again": "重新开始", "beta: how much is corrected": "beta：改正多少", "both one step on": "两者都走一步",
    "decay: what is left at each token": "衰减：每个词元之后还剩多少", "direction of the query, degrees": "查询的方向（度）",
    "feature 1": "特征 1", "feature 2": "特征 2", "features d =": "特征数 d =", "features, as a power of two": "特征数（2 的幂）",
    "gradient of the scores": "分数的梯度", "its length": "它的长度", "kept": "留下的", "looks at": "看", "slopes of the weights": "权重的斜率", "key": "键",
    "keys that its query looks at:": "它的查询看到的键：", "largest slope w (1 - w), not divided:": "最大的斜率 w (1 - w)，不除：",
    "mean cost r =": "平均代价 r =", "next token": "下一个词元", "next word": "下一个词", "no token yet": "还没有词元",
    "output": "输出", "position of the key": "键的位置", "position of the query": "查询的位置", "positions apart:": "相隔：",
    "query": "查询", "read with the first key": "用第一个键读出", "rows projected so far, with the cache:": "到此投影的行数，有缓存：",
    "score of": "分数：", "score of this pair =": "这一对的分数 =", "slope of all weights by the score of": "所有权重对这个分数的斜率：",
    "state": "状态", "their sum =": "它们的和 =", "typical size of a score that is not divided:": "不除时分数的典型大小：",
    "value": "值", "value 1": "值 1", "value 2": "值 2", "weight": "权重", "weights": "权重",
    "weights, divided by the root of d": "权重，除以根号 d", "weights, not divided": "权重，不除",
    "what the state said of this key": "状态对这个键所说的", "who looks at whom": "谁看谁", "without:": "没有缓存：", "no": "否", "yes": "可",
    "words so far:": "到此的词数：", "cost z of": "代价 z：", "written": "写入的",
  };
  const inChinese = document.documentElement.lang.startsWith("zh");
  const say = (text) => (inChinese && CHINESE[text]) || text;

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  function drawn(name, attributes) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  // A number as people read it, and whole for whoever compares.
  function number(into, value, digits = 3) {
    into.textContent = value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "\u2212");
    into.dataset.value = value;
  }

  function slider(label, { min, max, step = 0.01, value }, moved, digits = 2) {
    const input = element("input", { type: "range", min, max, step, value, "aria-label": say(label) });
    const shown = element("output");
    const show = () => number(shown, Number(input.value), digits);
    input.addEventListener("input", () => { show(); moved(Number(input.value)); });
    show();
    return { input, row: element("label", { class: "slider" }, element("span", {}, say(label)), input, shown) };
  }

  // Rows of a word, a bar to the right or left of its middle, and a number.
  function bars(title, names, { most = 1, signed = false, digits = 3 } = {}) {
    const rows = names.map((name) => {
      const bar = element("span", { class: "bar" });
      const shown = element("output", { "aria-label": `${say(title)}, ${say(name)}` });
      return { bar, shown, row: element("div", { class: "row" }, element("span", { class: "name" }, say(name)),
        element("span", { class: signed ? "track signed" : "track" }, bar), shown) };
    });
    const root = element("div", { class: "bars" }, element("strong", {}, say(title)), ...rows.map(({ row }) => row));
    const show = (values) => values.forEach((value, place) => {
      const share = Math.min(Math.abs(value) / most, 1) * (signed ? 50 : 100);
      rows[place].bar.style.width = `${share}%`;
      if (signed) rows[place].bar.style.left = value < 0 ? `${50 - share}%` : "50%";
      rows[place].bar.classList.toggle("negative", value < 0);
      number(rows[place].shown, value, digits);
    });
    return { root, show };
  }

  function table(title, rows, columns) {
    const cells = rows.map(() => columns.map(() => element("td")));
    const head = element("tr", {}, element("th"), ...columns.map((name) => element("th", { scope: "col" }, say(name))));
    const body = rows.map((name, i) => element("tr", {}, element("th", { scope: "row" }, say(name)), ...cells[i]));
    return { root: element("table", {}, element("caption", {}, say(title)), head, ...body), cells };
  }

  function line(name) {
    const shown = element("output", { "aria-label": say(name) });
    return { root: element("p", { class: "line" }, `${say(name)} `, shown), show: (x, digits) => number(shown, x, digits) };
  }

  // A plane with arrows from its middle, one unit long where `unit` pixels are.
  function plane(unit, names) {
    const side = 220, root = drawn("svg", { viewBox: `${-side / 2} ${-side / 2} ${side} ${side}`, class: "plane", role: "img" });
    root.append(drawn("circle", { r: unit, class: "circle" }));
    const arrows = names.map((name, place) => {
      const shaft = drawn("line", { x1: 0, y1: 0, class: `arrow kind${place}` });
      const label = drawn("text", { class: `kind${place}` });
      label.textContent = say(name);
      root.append(shaft, label);
      return { shaft, label };
    });
    const show = (vectors) => vectors.forEach(([x, y], place) => {
      const { shaft, label } = arrows[place], size = Math.hypot(x, y) || 1;
      shaft.setAttribute("x2", unit * x);
      shaft.setAttribute("y2", -unit * y);
      label.setAttribute("x", unit * x + (10 * x) / size - 6);
      label.setAttribute("y", -unit * y - (10 * y) / size + 4);
    });
    return { root, show };
  }

  function lookup(place) {
    const keys = [[1.4, 0.2], [-0.3, 1.4]], values = [[1, 0], [0, 1]], names = ["cat", "ran"];
    const arrows = plane(55, [...names, "it"]), weights = bars("weights", names);
    const output = bars("output", ["animal", "action"]);
    let angle = 30, strength = 1.5;
    function show() {
      const query = rotated([strength, 0], (angle * Math.PI) / 180);
      const found = attention(query, keys, values);
      arrows.show([...keys, query]);
      weights.show(found.weights);
      output.show(found.output);
    }
    const turn = slider("direction of the query, degrees", { min: 0, max: 360, step: 1, value: angle }, (x) => { angle = x; show(); }, 0);
    const push = slider("its length", { min: 0, max: 4, value: strength }, (x) => { strength = x; show(); });
    place.append(arrows.root, turn.row, push.row, weights.root, output.root);
    show();
  }

  function softmaxFigure(place) {
    const scores = [...SCORES], weights = bars("weights", WORDS), by = bars("slopes of the weights", WORDS, { most: 0.25, signed: true });
    let last = 1;
    function show() {
      const w = softmax(scores);
      weights.show(w);
      by.root.firstChild.textContent = `${say("slope of all weights by the score of")} "${WORDS[last]}"`;
      by.show(slopes(w, last));
    }
    const sliders = WORDS.map((word, j) => slider(`${say("score of")} "${word}"`, { min: -4, max: 4, value: scores[j] }, (x) => {
      scores[j] = x;
      last = j;
      show();
    }));
    place.append(...sliders.map(({ row }) => row), weights.root, by.root);
    show();
  }

  function gradient(place) {
    const weights = softmax(SCORES), z = [0, weights[1] - 1, weights[2], 0]; // of the output (1, 0), as in the chapter
    const worth = line("mean cost r ="), pushes = bars("gradient of the scores", WORDS, { most: 0.3, signed: true, digits: 4 });
    const total = line("their sum =");
    function show() {
      const found = scoreGradient(weights, z);
      worth.show(found.mean, 4);
      pushes.show(found.gradient);
      total.show(found.gradient.reduce((x, y) => x + y, 0), 4);
    }
    const sliders = WORDS.map((word, j) => slider(`${say("cost z of")} "${word}", ${say("weight")} ${weights[j].toFixed(3)}`,
      { min: -1, max: 1, value: z[j] }, (x) => { z[j] = x; show(); }));
    place.append(...sliders.map(({ row }) => row), worth.root, pushes.root, total.root);
    show();
  }

  function mask(place) {
    const scores = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], SCORES];
    const z = [[1, 0, 0, 1], [0, 1, 0, 1], [0, 1, 0, 0], [0, -1, 1, 0]];
    const allowed = WORDS.map((_, i) => WORDS.map((__, j) => j <= i));
    const who = table("who looks at whom", WORDS, WORDS), weights = table("weights", WORDS, WORDS);
    const pushes = table("gradient of the scores", WORDS, WORDS);
    function show() {
      WORDS.forEach((_, i) => {
        const w = softmax(scores[i], allowed[i]), d = scoreGradient(w, z[i]).gradient;
        WORDS.forEach((__, j) => {
          const button = who.cells[i][j].firstChild;
          button.setAttribute("aria-pressed", allowed[i][j]);
          button.textContent = say(allowed[i][j] ? "yes" : "no");
          number(weights.cells[i][j], w[j], 2);
          number(pushes.cells[i][j], d[j], 2);
          weights.cells[i][j].style.setProperty("--share", w[j]);
          for (const shown of [weights, pushes]) shown.cells[i][j].classList.toggle("hidden", !allowed[i][j]);
        });
      });
    }
    WORDS.forEach((from, i) => WORDS.forEach((to, j) => {
      const button = element("button", { type: "button", "aria-label": `${from} ${say("looks at")} ${to}` });
      button.addEventListener("click", () => { allowed[i][j] = !allowed[i][j]; show(); });
      who.cells[i][j].append(button);
    }));
    place.append(element("div", { class: "beside" }, who.root, weights.root, pushes.root));
    show();
  }

  // Normal numbers that are the same at each visit: mulberry32, then Box and Muller.
  function normals(seed) {
    const uniform = () => {
      seed = (seed + 0x6d2b79f5) | 0;
      let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
      return (((t ^ (t >>> 14)) >>> 0) + 1) / 4294967297;
    };
    return () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  }

  function root(place) {
    const most = 512, draw = normals(3), names = Array.from({ length: 8 }, (_, j) => `${say("key")} ${j + 1}`);
    const query = Array.from({ length: most }, draw), keys = names.map(() => Array.from({ length: most }, draw));
    const plain = bars("weights, not divided", names), divided = bars("weights, divided by the root of d", names);
    const size = line("typical size of a score that is not divided:"), slope = line("largest slope w (1 - w), not divided:");
    const other = line("and divided:");
    const steepest = (w) => Math.max(...w.map((x) => x * (1 - x)));
    function show(power) {
      const d = Math.round(2 ** power), u = keys.map((key) => dot(query.slice(0, d), key.slice(0, d)));
      const one = softmax(u), two = softmax(u.map((x) => x / Math.sqrt(d)));
      plain.show(one);
      divided.show(two);
      size.show(Math.sqrt(d), 1);
      slope.show(steepest(one), 6);
      other.show(steepest(two), 6);
      features.show(d, 0);
    }
    const features = line("features d =");
    const width = slider("features, as a power of two", { min: 0, max: 9, step: 0.1, value: 2 }, show, 1);
    place.append(width.row, features.root, plain.root, divided.root, size.root, slope.root, other.root);
    show(2);
  }

  function rotary(place) {
    const speed = Math.PI / 8, query = [1, 0], key = rotated([1, 0], 0.5);
    const arrows = plane(80, ["query", "key"]), score = line("score of this pair ="), apart = line("positions apart:");
    let p = 3, t = 1;
    function show() {
      const turned = [rotated(query, p * speed), rotated(key, t * speed)];
      arrows.show(turned);
      apart.show(p - t, 0);
      score.show(dot(...turned));
    }
    const one = slider("position of the query", { min: 0, max: 16, step: 1, value: p }, (x) => { p = x; show(); }, 0);
    const two = slider("position of the key", { min: 0, max: 16, step: 1, value: t }, (x) => { t = x; show(); }, 0);
    const both = element("button", { type: "button" }, say("both one step on"));
    both.addEventListener("click", () => {
      for (const { input } of [one, two]) { input.value = Number(input.value) + 1; input.dispatchEvent(new Event("input")); }
    });
    place.append(arrows.root, one.row, two.row, both, apart.root, score.root);
    show();
  }

  function cache(place) {
    const text = "the cat ran and it hid from the dog".split(" ");
    const kept = table("kept", text, ["key", "value"]), now = line("words so far:"), looked = line("keys that its query looks at:");
    const withCache = line("rows projected so far, with the cache:"), without = line("without:");
    let n = 0;
    function show() {
      kept.cells.forEach((row, j) => row.forEach((cell) => {
        cell.textContent = j < n ? "\u25a0" : "";
        cell.classList.toggle("new", j === n - 1);
      }));
      now.show(n, 0);
      looked.show(n, 0);
      withCache.show(n, 0);
      without.show((n * (n + 1)) / 2, 0);
    }
    const next = element("button", { type: "button" }, say("next word"));
    next.addEventListener("click", () => { n = n < text.length ? n + 1 : 0; show(); });
    place.append(next, now.root, kept.root, looked.root, withCache.root, without.root);
    show();
  }

  function state(place) {
    const tokens = [["A", [1, 0], [3, 0]], ["B", [0, 1], [0, 2]], ["A again", [1, 0], [1, 1]], ["between", [0.8, 0.6], [2, 2]]];
    const shown = table("state", ["feature 1", "feature 2"], ["value 1", "value 2"]);
    const said = bars("what the state said of this key", ["value 1", "value 2"], { most: 4, signed: true });
    const wrote = bars("written", ["value 1", "value 2"], { most: 4, signed: true });
    const back = bars("read with the first key", ["value 1", "value 2"], { most: 4, signed: true });
    const told = element("p", { class: "line", "aria-live": "polite" });
    let decay = 1, beta = 1, count = 0, matrix = [[0, 0], [0, 0]];
    function show(found = { said: [0, 0], written: [0, 0] }) {
      matrix.forEach((row, a) => row.forEach((x, b) => number(shown.cells[a][b], x)));
      said.show(found.said);
      wrote.show(found.written);
      back.show(read(matrix, tokens[0][1]));
      told.textContent = count ? `${say("a token:")} ${count}, ${say("key")} ${tokens[(count - 1) % tokens.length][0]}` : say("no token yet");
    }
    const next = element("button", { type: "button" }, say("next token")), again = element("button", { type: "button" }, say("begin again"));
    next.addEventListener("click", () => {
      const [, key, value] = tokens[count % tokens.length], found = stateStep(matrix, key, value, decay, beta);
      count += 1;
      matrix = found.state;
      show(found);
    });
    again.addEventListener("click", () => { count = 0; matrix = [[0, 0], [0, 0]]; show(); });
    const left = slider("decay: what is left at each token", { min: 0, max: 1, value: decay }, (x) => { decay = x; });
    const share = slider("beta: how much is corrected", { min: 0, max: 1, value: beta }, (x) => { beta = x; });
    place.append(left.row, share.row, next, again, told, said.root, wrote.root, shown.root, back.root);
    show();
  }

  const FIGURES = { lookup, softmax: softmaxFigure, gradient, mask, root, rotary, cache, state };

  function begin() {
    for (const figure of document.querySelectorAll("figure.moving")) {
      const still = figure.querySelector("a.enlarge");
      const place = element("div", { class: "moves", role: "group", "aria-label": say("a figure that moves") });
      FIGURES[figure.id.replace("moving-", "")](place);
      if (still) still.replaceWith(place);
      else figure.prepend(place);
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
