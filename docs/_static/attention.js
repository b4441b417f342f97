// The formulas behind the figures that move. A test holds each against the op of the library.
(() => {
  "use strict";

  const sum = (x) => x.reduce((total, value) => total + value, 0);
  const dot = (x, y) => sum(x.map((value, place) => value * y[place]));

  // w_j = e^(s_j) / sum_l e^(s_l) over the places where allowed is true; zeros where none is
  function softmax(scores, allowed = scores.map(() => true)) {
    const largest = Math.max(...scores.filter((_, place) => allowed[place]));
    const powers = scores.map((score, place) => (allowed[place] ? Math.exp(score - largest) : 0));
    const total = sum(powers);
    return powers.map((power) => (total ? power / total : 0));
  }

  // d w_j / d s_l for all j
  const slopes = (weights, l) => weights.map((weight, j) => weight * ((j === l ? 1 : 0) - weights[l]));

  // r = sum_l w_l z_l, and d loss / d s_j = w_j (z_j - r) for the gradient z of the weights
  function scoreGradient(weights, z) {
    const mean = dot(weights, z);
    return { mean, gradient: weights.map((weight, j) => weight * (z[j] - mean)) };
  }

  // one query over all keys and values
  function attention(query, keys, values, scale = 1 / Math.sqrt(query.length)) {
    const scores = keys.map((key) => scale * dot(query, key));
    const weights = softmax(scores);
    const output = values[0].map((_, b) => sum(weights.map((weight, j) => weight * values[j][b])));
    return { scores, weights, output };
  }

  // a pair of features, turned
  const rotated = ([x, y], angle) => [
    x * Math.cos(angle) - y * Math.sin(angle),
    x * Math.sin(angle) + y * Math.cos(angle),
  ];

  // One token of the gated delta rule: the state (d_k rows of d_v) decays, is read for the key, and is corrected.
  function stateStep(state, key, value, decay, beta) {
    const decayed = state.map((row) => row.map((x) => decay * x));
    const said = value.map((_, b) => sum(key.map((k, a) => k * decayed[a][b])));
    const written = value.map((x, b) => beta * (x - said[b]));
    return { said, written, state: decayed.map((row, a) => row.map((x, b) => x + key[a] * written[b])) };
  }

  const read = (state, query) => state[0].map((_, b) => sum(query.map((q, a) => q * state[a][b])));

  const formulas = { attention, dot, read, rotated, scoreGradient, slopes, softmax, stateStep };
  if (typeof module === "undefined") window.attention = formulas;
  else module.exports = formulas;
})();
