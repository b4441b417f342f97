"""The inputs that `check` runs on: real sentences, every op, nothing that changes from run to run."""

import numpy as np
import pytest

from attention_np import cases


def test_every_op_has_cases_and_one_of_them_is_made_of_real_sentences() -> None:
    for op in cases.OPS:
        names = [case.name for case in cases.all_cases([op])]
        assert len(names) == len(set(names)) >= 5
        assert any(name.startswith("sentences") for name in names)


@pytest.mark.parametrize("op", [op for op in cases.OPS if op != "softmax"])
def test_every_attention_has_a_case_in_which_a_query_may_attend_to_nothing(op: str) -> None:
    caches = [case.module.forward(**case.inputs, **case.options)[1] for case in cases.all_cases([op])]
    empty = [
        np.isneginf(cache.logsumexp) if op == "blockwise" else (cache.weights == 0).all(axis=-1) for cache in caches
    ]
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
