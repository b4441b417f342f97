"""The inputs that `check` runs on: real sentences, every op, nothing that changes from run to run."""

import sys
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

import attention_np
from attention_np import cases


def of(op: str) -> dict[str, cases.Case]:
    found = {case.name: case for case in cases.all_cases([op])}
    assert len(found) == len(cases.all_cases([op]))
    return found


@pytest.mark.parametrize("op", attention_np.OPS)
def test_every_op_has_cases_of_its_page_its_options_and_real_sentences(op: str) -> None:
    found = of(op)
    takes = dict(signature(cases.OPS[op].forward).parameters)
    if op in cases.INFINITE:
        del takes["mask"]
    assert any(name.startswith("sentences") for name in found) == ("mask" in takes)
    assert {name for case in found.values() for name in case.inputs} <= takes.keys()
    options = {name for case in found.values() for name in case.options} - {"parameters"}
    assert options >= {"is_causal", "scale", "softcap", "mask", "dropout_p"} & takes.keys()
    arrays = set(cases.drawn(op).inputs)
    assert arrays == set(found.get("every array", found["plain"]).inputs)
    given = found["plain"].inputs.keys() | found["plain"].options.keys()
    assert arrays >= set(found["plain"].inputs)
    assert given & arrays == {name for name, x in takes.items() if x.default is x.empty} & arrays


def test_widths_of_a_page_are_those_of_the_arrays() -> None:
    case = cases.drawn("multi_head", leading=(2, 1), n=3, m=7, H=5, d_x=6)
    assert case.options == {"num_heads": 5}
    shapes = {name: x.shape for name, x in case.inputs.items() if name != "parameters"}
    assert shapes == {"query": (2, 1, 3, 6), "key": (2, 1, 7, 2), "value": (2, 1, 7, 3), "bias": (3, 7)}
    assert case.inputs["parameters"].w_key.shape == (2, 15)
    assert cases.drawn("multi_head", optional=False).inputs["parameters"].b_query is None


def test_cases_that_cannot_be_made_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases._header.cache_clear()
    monkeypatch.setattr(cases, "PAGES", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"^there is no page to make cases of softmax from: "):
        cases.all_cases(["softmax"])
    monkeypatch.setitem(sys.modules, "attention_np.derivation.header", None)
    with pytest.raises(ImportError, match=r"^cases are made from derivation pages, .*'attention-np\[check\]'$"):
        cases.all_cases(["softmax"])
    assert cases.batch(["a b"], features=3).embedded.shape == (1, 2, 3)


@pytest.mark.parametrize(
    "op", [op for op, x in cases.OPS.items() if "query" in signature(x.forward).parameters and op not in cases.INFINITE]
)
def test_every_attention_has_a_case_in_which_a_query_may_attend_to_nothing(op: str) -> None:
    caches = [case.module.forward(**case.inputs, **case.options)[1] for case in cases.all_cases([op])]
    if op == "linear_attention":  # whose padded tokens read nothing
        empty = [np.zeros(1, bool) if cache.mask is None else ~cache.mask for cache in caches]
    elif op == "blockwise":
        empty = [np.isneginf(cache.logsumexp) for cache in caches]
    else:
        empty = [(cache.weights == 0).all(axis=-1) for cache in caches]
    assert any(rows.any() and not rows.all() for rows in empty)


def test_a_batch_pads_sentences_of_different_lengths_with_the_padding_token() -> None:
    batch = cases.batch(cases.MIXED, features=3)
    lengths = [len(cases.tokenise(sentence)) for sentence in cases.MIXED]
    assert len(set(lengths)) > 1
    assert batch.tokens.shape == (4, max(lengths))
    for row, length in zip(batch.tokens, lengths, strict=True):
        assert (row[:length] != cases.PAD).all()
        assert (row[length:] == cases.PAD).all()


def test_equal_words_get_equal_tokens_and_equal_embeddings() -> None:
    batch = cases.batch(["the cat", "The dog the"], features=4)
    assert batch.tokens[0, 0] == batch.tokens[1, 0] == batch.tokens[1, 2] != batch.tokens[0, 1]
    np.testing.assert_array_equal(batch.embedded[0, 0], batch.embedded[1, 2])


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("Thinking strictly is hard", ["thinking", "strictly", "is", "hard"]),
        ("我爱自然语言", ["我", "爱", "自", "然", "语", "言"]),
        ("Transformer改变了AI领域。", ["transformer", "改", "变", "了", "ai", "领", "域"]),
    ],
)
def test_words_are_tokens_and_so_is_each_chinese_character(sentence: str, words: list[str]) -> None:
    assert cases.tokenise(sentence) == words


def test_cases_are_the_same_every_time() -> None:
    for first, second in zip(cases.all_cases(), cases.all_cases(), strict=True):
        assert (first.op, first.name) == (second.op, second.name)
        output, _ = first.module.forward(**first.inputs, **first.options)
        again, _ = second.module.forward(**second.inputs, **second.options)
        np.testing.assert_array_equal(output, again)
