"""Diagrams of mechanism, as SVG in the colours of the page: boxes, which are arrays, and arrows between them."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from attention_np import softmax, weightings
from attention_site.diagram_parts import arrow, box, cell, circle, flow, grid, picture, text

__all__ = ["IN_CHINESE", "MECHANISMS", "draw"]

CAUSAL = ("qhhh", "qqhh", "qqqh", "qqqq")


def _attention(said: str) -> str:
    parts = [
        box(10, 20, 40, 70, "Q", "n x d_k", "query"),
        box(70, 35, 70, 40, "K^T", "d_k x m", "key"),
        arrow((145, 55), (195, 55), label="÷ √d_k"),
        box(200, 20, 70, 70, "S", "n x m"),
        arrow((275, 55), (335, 55), label="softmax"),
        box(340, 20, 70, 70, "A", "n x m"),
        box(425, 20, 40, 70, "V", "m x d_v", "value"),
        arrow((470, 55), (505, 55)),
        box(510, 20, 40, 70, "O", "n x d_v"),
    ]
    return picture(560, 115, said, parts)


def _heads(said: str) -> str:
    parts = []
    for head in range(4):
        parts += [box(10, 10 + 40 * head, 90, 30, f"query {head + 1}", kind="query")]
        parts += [arrow((103, 25 + 40 * head), (205, 45 + 80 * (head // 2)))]
        parts += [arrow((310, 45 + 80 * (head // 2)), (405, 25 + 40 * head))]
        parts += [box(410, 10 + 40 * head, 90, 30, f"output {head + 1}")]
    parts += [box(210, 30 + 80 * group, 95, 30, f"key, value {group + 1}", kind="key") for group in range(2)]
    parts += [arrow((503, 85), (545, 85), label="W^O"), box(550, 70, 60, 30, "sum")]
    return picture(620, 175, said, parts)


def _block(said: str) -> str:
    parts = [box(5, 85, 45, 30, "x")]
    for start, name in ((50, "attention"), (310, "feed-forward")):
        parts += [
            arrow((start + 2, 100), (start + 238, 100)),
            arrow((start + 20, 100), (start + 20, 35), (start + 33, 35)),
            box(start + 35, 20, 55, 30, "norm"),
            arrow((start + 92, 35), (start + 108, 35)),
            box(start + 110, 20, 100, 30, name, kind="query" if name == "attention" else "value"),
            arrow((start + 212, 35), (start + 248, 35), (start + 248, 86)),
            circle(start + 248, 100, "+"),
        ]
    parts += [arrow((569, 100), (600, 100)), box(603, 85, 45, 30, "y")]
    return picture(655, 125, said, parts)


def _paths(start: str, between: str, *ends: str) -> list[str]:
    """One number that moves three, all of which move the next."""
    parts, x = [box(10, 65, 50, 30, start)], 320
    for row in range(3):
        y = 20 + 45 * row
        parts += [arrow((62, 80), (155, y + 15)), box(160, y, 60, 30, f"{between}_{row + 1}", kind="query")]
        parts += [arrow((222, y + 15), (315, 80))]
    for end in ends:
        parts += [arrow((x - 70 + 2, 80), (x - 5, 80))] if x > 320 else []
        parts += [box(x, 65, 50, 30, end)]
        x += 120
    return parts


def _score(said: str) -> str:
    return picture(500, 160, said, _paths("S_j", "A", "O", "L"))


def _chain_rule(said: str) -> str:
    return picture(380, 160, said, _paths("x", "y", "L"))


def _state(said: str) -> str:
    parts = [box(10, 60, 70, 40, "S^{(t-1)}")]
    names = ["decay", "read for k", "correct", "write"]
    for place, name in enumerate(names):
        x = 115 + 110 * place
        parts += [arrow((x - 33, 80), (x - 5, 80)), box(x, 62, 78, 36, name, kind="key" if place in (1, 2) else "")]
    parts += [arrow((525, 80), (550, 80)), box(553, 60, 55, 40, "S^{(t)}")]
    parts += [arrow((374, 20), (374, 60)), text(374, 14, "v, β")]
    parts += [arrow((154, 20), (154, 60)), text(154, 14, "e^g")]
    parts += [arrow((580, 103), (580, 140)), text(520, 158, "o = scale · S^T q")]
    return picture(620, 170, said, parts)


def _chunks(said: str) -> str:
    rows = ["q.....", "qq....", "kkq...", "kkqq..", "kkkkq.", "kkkkqq"]
    parts = [
        grid(10 + 26 * j, 10 + 26 * i, [kind]) for i, row in enumerate(rows) for j, kind in enumerate(row[: i + 1])
    ]
    for chunk in range(3):
        x = 215 + 95 * chunk
        parts += [box(x, 70, 56, 34, f"chunk {chunk + 1}", kind="query")]
        parts += [arrow((x + 60, 87), (x + 92, 87), label="S")] if chunk < 2 else []
    parts += [cell(215, 122, "query", 16), text(238, 135, "within a chunk: products of matrices", "legend")]
    parts += [cell(215, 146, "key", 16), text(238, 159, "before it: through the state alone", "legend")]
    return picture(470, 175, said, parts)


def _normalise(said: str) -> str:
    parts = [box(105, 15, 62, 122, "− max"), box(265, 15, 62, 122, "÷ sum")]
    for row in range(3):
        y = 18 + 42 * row
        parts += [
            box(10, y, 55, 32, f"S_{row + 1}"),
            arrow((68, y + 16), (101, y + 16)),
            arrow((170, y + 16), (192, y + 16)),
        ]
        parts += [box(196, y, 38, 32, f"E_{row + 1}"), arrow((237, y + 16), (261, y + 16))]
        parts += [arrow((330, y + 16), (361, y + 16)), box(365, y, 55, 32, f"A_{row + 1}", kind="query")]
    parts += [text(181, 12, "exp", "shape")]
    return picture(430, 150, said, parts)


def _additive(said: str) -> str:
    parts = [
        flow(10, 10, ("q_i", "", "query"), "W^Q", ("X_i", "")),
        flow(10, 80, ("k_j", "", "key"), "W^K, + β", ("Y_j", "")),
        arrow((119, 26), (180, 26), (180, 50)),
        arrow((153, 96), (180, 96), (180, 72)),
        circle(180, 61, "+"),
        arrow((192, 61), (226, 61)),
        flow(230, 45, ("tanh", ""), "w", ("S_{ij}", ""), "softmax", ("A_{ij}", "")),
    ]
    return picture(465, 120, said, parts)


def _projections(said: str) -> str:
    parts = [box(10, 66, 50, 40, "X", "n x d")]
    for row, (name, kind) in enumerate((("Q", "query"), ("K", "key"), ("V", "value"))):
        y = 10 + 58 * row
        parts += [arrow((63, 86), (126, y + 18), label=f"W^{name}" if row == 0 else "")]
        parts += [box(130 + 24 * head, y, 22, 36, f"{name}_{head + 1}", kind=kind) for head in range(3)]
        parts += [arrow((206, y + 18), (246, 86))]
    parts += [box(250, 20 + 46 * head, 92, 38, f"attention {head + 1}") for head in range(3)]
    for head in range(3):
        parts += [
            arrow((345, 39 + 46 * head), (378, 39 + 46 * head)),
            box(381, 20 + 46 * head, 34, 46, f"O_{head + 1}"),
        ]
    parts += [arrow((418, 89), (460, 89), label="W^O"), box(464, 69, 46, 40, "Y", "n x d")]
    return picture(520, 180, said, parts)


def _mask(said: str) -> str:
    def hidden(label: str) -> list[list[str]]:
        return [[label if kind == "h" else "" for kind in row] for row in CAUSAL]

    parts = [
        grid(10, 10, CAUSAL, "S", hidden("-∞")),
        arrow((122, 60), (178, 60), label="softmax"),
        grid(185, 10, CAUSAL, "A", hidden("0")),
        arrow((346, 60), (297, 60), label="back", kind="back"),
        grid(353, 10, CAUSAL, "∂L/∂S", hidden("0")),
    ]
    return picture(465, 140, said, parts)


def _variance(said: str) -> str:
    parts = []
    for row, name in enumerate(("q_1 k_1", "q_2 k_2", "⋮", "q_d k_d")):
        y = 8 + 38 * row
        parts += [text(55, y + 20, name)] if row == 2 else [box(10, y, 90, 30, name)]
        parts += [arrow((103, y + 15), (157, 80))] if row != 2 else []
    parts += [text(55, 172, "variance 1 each", "shape"), circle(170, 80, "+"), arrow((183, 80), (212, 80))]
    parts += [box(216, 62, 70, 36, "q · k", "variance d", "key"), arrow((289, 80), (341, 80), label="÷ √d")]
    parts += [box(345, 62, 70, 36, "score", "variance 1", "query")]
    return picture(430, 180, said, parts)


def _positions(said: str) -> str:
    parts = [grid(10, 10, ["qqqq"] * 3, "X"), circle(139, 49, "+"), grid(163, 10, ["kkkk"] * 3, "P")]
    parts += [arrow((271, 49), (309, 49)), flow(313, 33, ("attention", ""))]
    return picture(415, 110, said, parts)


def _cache(said: str) -> str:
    parts = [grid(10, 10, [("k" if row < 4 else "q") * 3 for row in range(5)], "K")]
    parts += [grid(108, 10, [("v" if row < 4 else "q") * 3 for row in range(5)], "V")]
    parts += [arrow((256, 127), (194, 127), label="append"), box(260, 108, 78, 38, "token t")]
    parts += [
        arrow((299, 105), (299, 76)),
        box(260, 36, 78, 38, "q_t", kind="query"),
        arrow((256, 55), (194, 55), kind="arrow"),
    ]
    parts += [text(225, 46, "all rows", "shape"), arrow((341, 55), (376, 55)), box(380, 36, 50, 38, "o_t")]
    return picture(440, 165, said, parts)


def _tiles(said: str) -> str:
    parts = []
    for block in range(4):
        x = 50 + 98 * block
        parts += [
            box(x, 10, 66, 30, f"K^{{({block + 1})}}, V^{{({block + 1})}}", kind="key"),
            arrow((x + 33, 43), (x + 33, 72)),
        ]
        parts += [box(x, 76, 66, 34, f"S^{{({block + 1})}}", kind="query" if block == 1 else "hidden")]
        parts += [arrow((x + 33, 113), (x + 33, 140)), box(x, 144, 66, 34, "μ, σ, Õ")]
        parts += [arrow((x + 69, 161), (x + 95, 161))] if block < 3 else []
    parts += [
        box(5, 76, 34, 34, "Q", kind="query"),
        arrow((413, 161), (438, 161), label="÷ σ"),
        box(441, 144, 34, 34, "O"),
    ]
    return picture(482, 190, said, parts)


def _latent(said: str) -> str:
    parts = [
        text(38, 40, "plain", "shape"),
        flow(80, 18, ("C", "", "key"), "W^K, W^V", ("K, V", ""), "× Q", ("S", ""), "softmax, × V", ("O", "")),
        text(38, 112, "absorbed", "shape"),
        flow(80, 90, ("Q", "", "query"), "W^K", ("Q̂", ""), "× C", ("S", ""), "softmax, × C, W^V", ("O", "")),
    ]
    return picture(490, 140, said, parts)


def _features(said: str) -> str:
    parts = [
        box(10, 25, 34, 70, "φ(Q)", "n x r", "query"),
        text(57, 65, "("),
        box(66, 43, 70, 34, "φ(K)^T", "r x m", "key"),
        box(142, 25, 34, 70, "V", "m x d_v", "value"),
        text(185, 65, ")"),
        text(206, 65, "="),
        box(222, 25, 34, 70, "φ(Q)", "n x r", "query"),
        box(266, 43, 42, 34, "S", "r x d_v"),
        text(328, 65, "="),
        box(346, 25, 34, 70, "O", "n x d_v"),
    ]
    return picture(395, 120, said, parts)


def _bias(said: str) -> str:
    rows = [[f"{-abs(i - j)}" if i != j else "0" for j in range(4)] for i in range(4)]
    parts = [
        grid(10, 10, ["qqqq"] * 4, "scores"),
        circle(131, 60, "+"),
        grid(150, 10, ["kkkk"] * 4, "bias by distance", rows),
    ]
    parts += [arrow((262, 60), (318, 60), label="softmax"), grid(323, 10, ["qqqq"] * 4, "weights")]
    return picture(435, 140, said, parts)


def _windows(said: str) -> str:
    parts = [cell(10 + 40 * token, 90, "key", 34, f"{token + 1}") for token in range(9)]
    for window in range(4):
        middle = 67 + 80 * window
        parts += [box(middle - 30, 10, 60, 32, f"M_{window + 1}", kind="query")]
        parts += [arrow((27 + 40 * (2 * window + place), 87), (middle + 8 * (place - 1), 46)) for place in range(3)]
    return picture(380, 135, said, parts)


def _sampling(said: str) -> str:
    parts = [flow(10, 52, ("q", "", "query"), "W", ("where, how much", ""))]
    parts += [grid(258, 10, ["....", ".vv.", ".vv.", "...."], "V")]
    parts += [circle(303, 58, radius=4), arrow((223, 68), (298, 59))]
    parts += [arrow((366, 61), (400, 61)), box(404, 45, 40, 32, "O")]
    return picture(452, 140, said, parts)


def _selection(said: str) -> str:
    heights, kept = (14, 40, 10, 22, 52, 8, 18, 46), (1, 4, 7)
    parts = [flow(10, 50, ("q", "", "query"), "indexer")]
    for key, height in enumerate(heights):
        x, kind = 130 + 28 * key, "key" if key in kept else "hidden"
        parts += [
            f'<rect x="{x}" y="{84 - height}" width="20" height="{height}" class="{kind}"/>',
            cell(x, 92, kind, 20),
        ]
        parts += [arrow((x + 10, 115), (200 + 14 * kept.index(key) + 34, 148))] if key in kept else []
    parts += [
        box(180, 151, 136, 34, "softmax, values", kind="query"),
        arrow((319, 168), (352, 168)),
        box(356, 151, 40, 34, "O"),
    ]
    parts += [text(105, 107, "keys", "shape")]
    return picture(405, 192, said, parts)


def _thresholds(said: str) -> str:
    scores = np.array([1.3, 0.9, 0.2, -0.4])
    kinds = (weightings.sparsemax(), weightings.sigmoid())
    shown = {"scores": scores - scores.min() + 0.2, "softmax": softmax.forward(scores)[0]}
    shown |= {kind.name: weightings.forward(scores, weights_by=kind)[0] for kind in kinds}
    parts = []
    for place, (name, numbers) in enumerate(shown.items()):
        for key, number in enumerate(numbers):
            height, x = (36 if place == 0 else 80) * number, 12 + 112 * place + 22 * key
            kind = "query" if number else "hidden"
            parts += [f'<rect x="{x}" y="{88 - height:.1f}" width="17" height="{max(height, 1):.1f}" class="{kind}"/>']
        parts += [text(54 + 112 * place, 106, name, "shape")]
    threshold = 88 - 36 * (scores[:2].mean() - 0.5 - scores.min() + 0.2)  # two keys are inside
    parts += [
        f'<path d="M8 {threshold:.1f} L102 {threshold:.1f}" class="back"/>',
        text(104, threshold - 5, "τ", "shape"),
    ]
    return picture(450, 114, said, parts)


def _taps(said: str) -> str:
    parts = []
    for start, ahead in ((10, False), (240, True)):
        above, below = ("C", "X") if not ahead else ("∂L/∂C", "∂L/∂X")
        reach = range(2, 6) if not ahead else range(1, 5)
        for token in range(6):
            x = start + 32 * token
            kind = "value" if not ahead else "key"
            parts += [cell(x, 20, kind if (token in reach if ahead else token == 5) else "", 26)]
            parts += [cell(x, 100, kind if (token == 1 if ahead else token in reach) else "", 26)]
        for token in reach:
            ends = ((start + 13 + 32 * token, 97), (start + 13 + 160, 50))
            back = ((start + 13 + 32 * token, 49), (start + 13 + 32, 96))
            parts += [arrow(*back, kind="back") if ahead else arrow(*ends)]
        parts += [text(start + 95, 13, above, "shape"), text(start + 95, 143, below, "shape")]
    return picture(445, 150, said, parts)


def _rms(said: str) -> str:
    parts = [
        box(10, 62, 38, 32, "X"),
        arrow((29, 59), (29, 26), (56, 26)),
        box(60, 10, 165, 32, "ρ = root mean square", kind="key"),
        arrow((135, 45), (135, 65)),
        arrow((51, 78), (121, 78)),
        circle(135, 78, "÷"),
        arrow((148, 78), (196, 78)),
        flow(200, 62, ("N", ""), "× g", ("Y", "", "query")),
    ]
    return picture(330, 105, said, parts)


def _layer_norm(said: str) -> str:
    parts = [
        box(10, 62, 38, 32, "X"),
        arrow((29, 59), (29, 26), (48, 26)),
        box(52, 10, 58, 32, "mean", kind="key"),
        arrow((81, 45), (81, 65)),
        arrow((51, 78), (67, 78)),
        circle(81, 78, "−"),
        arrow((94, 78), (120, 78)),
        box(124, 62, 38, 32, "C"),
        arrow((143, 59), (143, 26), (162, 26)),
        box(166, 10, 165, 32, "σ = root mean square", kind="key"),
        arrow((241, 45), (241, 65)),
        arrow((165, 78), (227, 78)),
        circle(241, 78, "÷"),
        arrow((254, 78), (276, 78)),
        flow(280, 62, ("N", ""), "× g, + β", ("Y", "", "query")),
    ]
    return picture(430, 105, said, parts)


def _products(said: str) -> str:
    sizes = {"n": 60, "d_x": 40, "d_o": 60}
    rows = (
        (("X", "n", "d_x", ""), ("W", "d_x", "d_o", "key"), ("Y", "n", "d_o", "")),
        (("G", "n", "d_o", "query"), ("W^T", "d_o", "d_x", "key"), ("∂L/∂X", "n", "d_x", "query")),
        (("X^T", "d_x", "n", ""), ("G", "n", "d_o", "query"), ("∂L/∂W", "d_x", "d_o", "query")),
    )
    parts = []
    for row, (first, second, result) in enumerate(rows):
        middle = 42 + 95 * row
        for place, (label, high, wide, kind) in enumerate((first, second, result)):
            shape = f"{high} x {wide}"
            height, width = sizes[high], sizes[wide] + 8
            parts += [box(5 + 105 * place, middle - height / 2, width, height, label, shape, kind)]
        parts += [text(89, middle + 5, "·"), text(194, middle + 5, "=")]
    return picture(290, 300, said, parts)


def _slope(said: str) -> str:
    parts = [
        flow(10, 12, ("X", ""), "f", ("Y", "", "query")),
        arrow((29, 47), (29, 79)),
        text(36, 68, "slope", "legend"),
        flow(10, 82, ("∂L/∂X", ""), "⊙ D", ("G", "", "query"), kind="back"),
    ]
    return picture(200, 122, said, parts)


def _loss(said: str) -> str:
    parts = [
        flow(10, 12, ("S", "n x m"), "softmax", ("A", "n x m", "query"), "− log A_t", ("Y", "n")),
        flow(10, 92, ("G (A − T)", "", "query"), "∂L/∂S, in one step", ("G", ""), kind="back"),
    ]
    return picture(300, 132, said, parts)


def _chain(said: str) -> str:
    parts = [
        flow(10, 40, ("X", ""), "W", ("U", ""), "tanh", ("T", ""), "C"),
        circle(247, 56, "+"),
        arrow((260, 56), (288, 56)),
    ]
    parts += [box(292, 40, 38, 32, "Y"), arrow((29, 37), (29, 14), (247, 14), (247, 43))]
    parts += [flow(10, 128, ("∂X", "", "query"), "W^T", ("∂U", ""), "slope", ("∂T", ""), "C^T", ("G", ""), kind="back")]
    parts += [arrow((287, 125), (287, 104), (29, 104), (29, 125), kind="back")]
    return picture(340, 170, said, parts)


def _double(said: str) -> str:
    parts = [
        flow(10, 12, ("x", ""), "forward", ("y", ""), "", ("L", "")),
        flow(10, 62, ("∂L/∂x", "", "query"), "backward", ("∂L/∂y", "", "query"), kind="back"),
        arrow((44, 97), (44, 121)),
        flow(10, 124, ("φ = Σ ẋ ∂L/∂x", "", "key"), "backward of backward", ("∂φ/∂x, ∂φ/∂G", "", "key")),
    ]
    return picture(470, 165, said, parts)


def _check(said: str) -> str:
    parts = [
        flow(10, 12, ("x", ""), "backward", ("claim", "", "query")),
        flow(10, 72, ("x + ih", ""), "function", ("slope", "", "key")),
        arrow((205, 28), (240, 52)),
        arrow((205, 88), (240, 64)),
        box(244, 42, 40, 32, "−"),
        arrow((287, 58), (350, 58), label="> noise?"),
        box(354, 42, 76, 32, "verdict"),
    ]
    return picture(440, 112, said, parts)


def _permutation(said: str) -> str:
    parts = []
    for row, target in enumerate((1, 2, 0)):
        y = 10 + 40 * row
        parts += [
            box(10, y, 66, 30, f"k_{row + 1}, v_{row + 1}", kind="key"),
            arrow((79, y + 15), (156, 25 + 40 * target)),
        ]
        parts += [box(160, y, 66, 30, f"k_{(2, 0, 1)[row] + 1}, v_{(2, 0, 1)[row] + 1}", kind="key")]
        parts += [arrow((229, y + 15), (276, 65))]
    parts += [
        box(280, 48, 92, 34, "attention"),
        arrow((326, 15), (326, 44)),
        text(326, 11, "q"),
        arrow((375, 65), (402, 65)),
    ]
    parts += [box(406, 48, 40, 34, "o", kind="query")]
    return picture(455, 130, said, parts)


MECHANISMS: dict[str, Callable[[str], str]] = {
    "additive": _additive,
    "attention": _attention,
    "bias": _bias,
    "block": _block,
    "cache": _cache,
    "chain": _chain,
    "chain_rule": _chain_rule,
    "check": _check,
    "chunks": _chunks,
    "double": _double,
    "features": _features,
    "heads": _heads,
    "latent": _latent,
    "layer_norm": _layer_norm,
    "loss": _loss,
    "mask": _mask,
    "normalise": _normalise,
    "permutation": _permutation,
    "positions": _positions,
    "products": _products,
    "projections": _projections,
    "rms": _rms,
    "sampling": _sampling,
    "score": _score,
    "selection": _selection,
    "slope": _slope,
    "state": _state,
    "taps": _taps,
    "thresholds": _thresholds,
    "tiles": _tiles,
    "variance": _variance,
    "windows": _windows,
}
IN_CHINESE = {
    "&gt; noise?": "> 噪声？",
    "absorbed": "吸收后",
    "all rows": "所有行",
    "append": "追加",
    "attention": "注意力",
    "back": "反向",
    "backward": "反向",
    "backward of backward": "反向的反向",
    "before it: through the state alone": "块之前：只经过状态",
    "bias by distance": "按距离的偏置",
    "chunk": "块",
    "claim": "所称的梯度",
    "correct": "纠正",
    "decay": "衰减",
    "feed-forward": "前馈网络",
    "forward": "前向",
    "function": "函数",
    "in one step": "一步得到",
    "indexer": "索引器",
    "key, value": "键、值",
    "keys": "键",
    "mean": "均值",
    "norm": "归一化",
    "output": "输出",
    "plain": "普通",
    "query": "查询",
    "read for k": "用 k 读出",
    "root mean square": "均方根",
    "scale": "缩放因子",
    "score": "分数",
    "scores": "分数",
    "slope": "斜率",
    "softmax, values": "softmax、值",
    "sum": "求和",
    "token t": "词元 t",
    "values": "值",
    "variance": "方差",
    "each": "（每个）",
    "verdict": "结论",
    "weights": "权重",
    "where, how much": "看哪里，看多少",
    "within a chunk: products of matrices": "块之内：矩阵乘积",
    "write": "写入",
}
_PHRASES = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(IN_CHINESE, key=len, reverse=True)))})(?!\w)")


def draw(name: str, said: str, in_chinese: bool = False) -> str:
    """The diagram of that name, with its words in the language of the page."""
    drawn = MECHANISMS[name](said)
    if not in_chinese:
        return drawn
    return re.sub(r"(?<=>)[^<>]+(?=<)", lambda words: _PHRASES.sub(lambda match: IN_CHINESE[match[0]], words[0]), drawn)
