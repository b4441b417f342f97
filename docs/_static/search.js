// The search page: ranks the entries of entries.js by the words of the query, with the stemmer that Sphinx ships.
(() => {
  "use strict";

  const MOST = 40; // results that are shown
  const EXCERPT = 220; // characters, about
  const WEIGHT = { heading: 6, path: 3, text: 1 };
  const TAG = /^\(?([a-z][a-z0-9]*(?:-[a-z0-9]+)*\.[1-9][0-9]*)\)?$/;
  const TAGS = /\b[a-z][a-z0-9-]*\.[1-9][0-9]*\b/g;
  const SOURCES = /^(References|Sources|文献)$/; // whose titles of papers hold every word
  const CHINESE = /^docs\/zh\/|\.zh\.html/; // pages, which a query without Chinese characters asks for last
  const FORMULA = /(\\[([].*?\\[)\]])/s;

  const ignored = new Set(stopwords);
  const stemmer = new Stemmer();
  const stems = new Map();

  function stem(word) {
    if (!stems.has(word)) stems.set(word, stemmer.stemWord(word));
    return stems.get(word);
  }

  // Words in lower case, without the tags of equations; a Chinese character is a word, and so are two side by side.
  function words(text) {
    const plain = text.toLowerCase().replace(TAGS, " ").replaceAll("log-sum-exp", "logsumexp");
    const alone = plain.match(/\p{Script=Han}|(?:(?!\p{Script=Han})[\p{L}\p{N}])+/gu) ?? [];
    return [...alone, ...[...plain.matchAll(/(?=(\p{Script=Han}{2}))/gu)].map(([, pair]) => pair)];
  }

  // What a query can ask for: neither the smallest words nor the names of indices.
  function terms(text) {
    return words(text).filter((word) => !ignored.has(word) && !/^[a-z]$/.test(word)).map(stem);
  }

  const withoutFormulas = (text) => text.split(FORMULA).filter((_, place) => place % 2 === 0).join(" ");

  function count(into, found, weight) {
    for (const term of found) into.set(term, (into.get(term) ?? 0) + weight);
  }

  // How often each term stands in an entry. A long text or heading is more likely to hold any word, and counts less.
  function prepared(entries) {
    const sections = entries.filter((entry) => entry.kind !== "equation");
    const texts = sections.map((entry) => entry.text.map(withoutFormulas).join(" "));
    const lengths = texts.map((text) => words(text).length);
    const mean = lengths.reduce((sum, length) => sum + length, 0) / lengths.length;
    return sections.map((entry, place) => {
      const counts = new Map();
      const heading = new Set(terms(entry.heading)), path = new Set(terms(entry.path.join(" ")));
      count(counts, heading, WEIGHT.heading / Math.sqrt(heading.size));
      count(counts, path, WEIGHT.path);
      count(counts, terms(texts[place]), WEIGHT.text / (0.4 + (0.6 * lengths[place]) / mean));
      return { entry, counts };
    });
  }

  // Okapi BM25 over the weighted counts, times the square of the share of the query that an entry covers.
  function ranked(prepared, query) {
    const wanted = completed(prepared, [...new Set(terms(query))]), isEnglish = !/\p{Script=Han}/u.test(query);
    const rarity = new Map(
      wanted.map((term) => {
        const having = prepared.filter(({ counts }) => counts.has(term)).length;
        return [term, Math.log(1 + (prepared.length - having + 0.5) / (having + 0.5))];
      }),
    );
    const all = [...rarity.values()].reduce((sum, value) => sum + value, 0);
    const found = prepared.map(({ entry, counts }) => {
      let score = 0, covered = 0;
      for (const term of wanted) {
        const times = counts.get(term) ?? 0;
        score += (rarity.get(term) * times) / (times + 1.2);
        covered += times ? rarity.get(term) : 0;
      }
      const less = (SOURCES.test(entry.heading) ? 0.3 : 1) * (isEnglish && CHINESE.test(entry.to) ? 0.5 : 1);
      return { entry, score: score * (covered / all) ** 2 * less };
    });
    found.sort((one, other) => other.score - one.score);
    return { wanted: rarity, entries: found.filter(({ score }) => score > 0).map(({ entry }) => entry) };
  }

  // A term that stands nowhere is taken for the shortest one that it begins, or that begins it.
  function completed(prepared, wanted) {
    return wanted.map((term) => {
      if (prepared.some(({ counts }) => counts.has(term))) return term;
      const isLike = (key) => key.startsWith(term) || (key.length > 3 && term.startsWith(key));
      const alike = new Set(prepared.flatMap(({ counts }) => [...counts.keys()].filter(isLike)));
      return [...alike].sort((one, other) => one.length - other.length)[0] ?? term;
    });
  }

  // The equation that has a tag, and what mentions it.
  function tagged(entries, tag) {
    const mention = new RegExp(`(^|[^a-z-])${tag.replace(".", "\\.")}(?![0-9])`);
    const equations = entries.filter((entry) => entry.kind === "equation" && entry.heading === `(${tag})`);
    const mentions = entries.filter((entry) => entry.kind !== "equation" && entry.text.some((text) => mention.test(text)));
    return { wanted: new Map(), entries: equations.length ? [...equations, ...mentions] : [] };
  }

  // The sentence that has most of the query, and what follows it.
  function excerpt(entry, wanted) {
    if (entry.kind === "equation") return entry.text[0];
    let best = "", most = -1;
    for (const block of entry.text) {
      const sentences = inSentences(block);
      sentences.forEach((sentence, place) => {
        const here = new Set(terms(withoutFormulas(sentence)));
        const value = [...wanted].reduce((sum, [term, worth]) => sum + (here.has(term) ? worth : 0), 0);
        if (value > most) {
          most = value;
          best = sentence;
          for (let next = place + 1; next < sentences.length && best.length < EXCERPT; next++) {
            best += `${/[。？！]$/.test(best) ? "" : " "}${sentences[next]}`;
          }
        }
      });
    }
    return shortened(best);
  }

  function inSentences(text) {
    const sentences = [""];
    text.split(FORMULA).forEach((piece, place) => {
      const [first, ...others] = place % 2 ? [piece] : piece.split(/(?<=[^\sA-Z][.?!])\s+(?=\S)|(?<=[。？！])/);
      sentences[sentences.length - 1] += first;
      sentences.push(...others);
    });
    return sentences;
  }

  function shortened(text) {
    let short = "";
    for (const [place, piece] of text.split(FORMULA).entries()) {
      for (const part of place % 2 ? [piece] : piece.split(/(?<=\s)/)) {
        if (short.length > 1.5 * EXCERPT) return `${short.trimEnd()} …`;
        short += part;
      }
    }
    return short;
  }

  // Text with its formulas for MathJax and the words of the query marked.
  function shown(text, wanted) {
    const line = document.createElement("p");
    text.split(FORMULA).forEach((piece, place) => {
      if (place % 2) {
        const formula = document.createElement("span");
        formula.className = "math";
        formula.textContent = piece;
        line.append(formula);
        return;
      }
      for (const part of piece.split(/(\p{Script=Han}|(?:(?!\p{Script=Han})[\p{L}\p{N}])+)/u)) {
        const word = part.toLowerCase();
        if (wanted.has(stem(word)) && !ignored.has(word)) {
          const mark = document.createElement("mark");
          mark.textContent = part;
          line.append(mark);
        } else {
          line.append(part);
        }
      }
    });
    return line;
  }

  function result(entry, wanted) {
    const item = document.createElement("li"), link = document.createElement("a");
    item.className = entry.kind;
    item.lang = CHINESE.test(entry.to) ? "zh-Hans" : "en"; // which glyphs characters have
    link.href = entry.to;
    link.textContent = entry.heading;
    item.append(link);
    const path = entry.path.filter((title) => title !== entry.heading);
    if (path.length) {
      const where = document.createElement("span");
      where.className = "where";
      where.textContent = path.join(" › ");
      item.append(" ", where);
    }
    const text = excerpt(entry, wanted);
    if (text) item.append(shown(text, wanted));
    return item;
  }

  const query = (new URLSearchParams(location.search).get("q") ?? "").trim();
  for (const input of document.querySelectorAll("input[name=q]")) input.value = query;
  if (!query) return;
  const tag = query.toLowerCase().match(TAG);
  let found = tag ? tagged(entries, tag[1]) : { entries: [] };
  if (!found.entries.length) found = ranked(prepared(entries), query);
  const list = document.querySelector("#search-results");
  const places = found.entries.length;
  const summary = places > MOST ? `The ${MOST} best places for` : `${places} places for`;
  const inEnglish = places
    ? `${places === 1 ? "One place for" : summary} “${query}”`
    : `Nothing was found for “${query}”.`;
  const foundInChinese = places > MOST ? `最符合“${query}”的 ${MOST} 处` : `“${query}”：${places} 处`;
  const inChinese = places ? foundInChinese : `没有找到“${query}”。`;
  const asksInChinese = /\p{Script=Han}/u.test(query);
  document.querySelector("#search-summary").textContent = asksInChinese ? inChinese : inEnglish;
  if (asksInChinese) {
    document.documentElement.lang = "zh-Hans";
    for (const said of document.querySelectorAll(".search h1, .search button")) said.textContent = "搜索";
  }
  list.append(...found.entries.slice(0, MOST).map((entry) => result(entry, found.wanted)));
})();
