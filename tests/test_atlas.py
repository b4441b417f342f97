import numpy as np
import pytest
from helpers import each, some_of

from attention_np import atlas, chain, gradcheck
from attention_np.atlas.recipes._registry import RECIPES
from attention_np.cli import main


@each("name", *some_of(RECIPES, 10))
def test_every_recipe_has_the_gradients_that_its_numbers_have(name: str) -> None:
    gradcheck.check_op(chain, atlas.random(name), layer=RECIPES[name]).raise_if_failed()


def test_a_recipe_runs_on_arrays_as_on_variables() -> None:
    arrays = atlas.random("grouped_query")
    output, _ = chain.forward(atlas.recipes.grouped_query, arrays)
    np.testing.assert_array_equal(atlas.recipes.grouped_query(**arrays), output)


def test_a_recipe_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"there is no recipe 'hashing', only .*grouped_query, "):
        atlas.random("hashing")


def test_the_table_has_a_line_for_each_class_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["atlas", "llama", "bert"]) == 0
    header, *rows, last = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["model", "class", "recipe"]
    assert [row.split()[:3] for row in rows] == [
        ["llama", "LlamaAttention", "grouped_query"],
        ["bert", "BertCrossAttention", "multi_head"],
        ["bert", "BertSelfAttention", "multi_head"],
    ]
    assert "models whole" in last


def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["atlas", "no_model"]) == 2
    assert "has no model 'no_model' with attention of its own" in capsys.readouterr().err
