"""Self-attention on a padded batch of real sentences: who attends to whom, and what the gradient says of it.

Run with ``python examples/sentences.py``.
"""

import numpy as np

import attention_np as anp
from attention_np import cases

SENTENCES = ("The cat sat on the mat", "我爱自然语言处理", "I love AI")


def main() -> None:
    """Print the weights of each sentence, and how strongly its first word's output depends on each word."""
    batch = cases.batch(SENTENCES, features=16)  # random embeddings: equal words are alike, others are not
    mask = anp.masks.padding_from_tokens(batch.tokens, pad_id=cases.PAD)
    x = batch.embedded
    output, cache = anp.dot_product.forward(x, x, x, mask=mask)

    d_output = np.zeros_like(output)
    d_output[:, 0] = 1.0  # the loss is the sum of the first word's output
    gradients = anp.dot_product.backward(d_output, cache)
    influence = np.linalg.norm(gradients.key + gradients.value, axis=-1)  # (sentences, longest)

    for sentence, weights, strength in zip(SENTENCES, cache.weights, influence, strict=True):
        words = cases.tokenise(sentence)
        print(f"\n{sentence}")
        for i, word in enumerate(words):
            print(f"  {word:8}" + "".join(f"{weight:7.3f}" for weight in weights[i, : len(words)]))
        print("  gradient" + "".join(f"{number:7.3f}" for number in strength[: len(words)]))
        assert not weights[:, len(words) :].any(), "nothing attends to padding"
        assert not strength[len(words) :].any(), "no gradient reaches padding"


if __name__ == "__main__":
    main()
