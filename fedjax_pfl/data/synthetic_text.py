"""Generated sentences of known sentiment, a substitute for tweets."""

import dataclasses

import numpy as np
from numpy.random import Generator

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import synthetic

__all__ = ["SyntheticSentiment"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticSentiment(synthetic.Generated):
    """Generated sentences with a sentiment; every client prefers words of one topic.

    Every word belongs to one topic and is positive, negative or neutral. A sentence of
    client k is positive with probability p_k, and of `min_words` to `num_words` words.
    Each word carries sentiment with probability `polarity`, and this sentiment is
    the sentence's with probability `agreement`; it is of the client's topic with
    probability `topic_shift`, else of any, and there all words are alike. Hence the
    best guess of `y` from the words alone is the sign of `log(p_k / (1 - p_k))` plus
    `log(agreement / (1 - agreement))` times the positive words less the negative ones.

    Ids are as in `Sent140`: 0 pads sentences at the end and has the vector 0. Vectors
    are `0.5 (z + s a + b)` with `z` of the word, `s` its sentiment, `a` a direction
    common to all and `b` the topic's, all standard Gaussian.

    Truth, by id: `sentiment [V + 1]` (-1, 0 or 1), `topic [V + 1]` (-1 for padding);
    by client: `preferred [N]` (its topic, also its cluster) and `positive [N]` (p_k).

    Attributes:
      num_words: words of the longest sentences.
      min_words: words of the shortest sentences, at most `num_words`.
      num_topics: number of topics.
      words_per_topic: words of a topic; V is `num_topics * words_per_topic`.
      polar_words: positive words of a topic, and as many negative ones; at least one
        word has to be left that is neutral.
      embedding_size: length of the words' vectors.
      examples_per_client: sentences of each client.
      topic_shift: 0 for clients alike, 1 for words of a client's own topic only.
      balance_shift: p_k is uniform in `(1 +- balance_shift) / 2`.
      polarity: share of the words that carry sentiment.
      agreement: share of these with the sentence's sentiment.
    """

    num_words: int = struct.static_field(default=25, at_least=1)
    min_words: int = 8
    num_topics: int = struct.static_field(default=5, at_least=1)
    words_per_topic: int = 100
    polar_words: int = struct.static_field(default=20, at_least=1)
    embedding_size: int = struct.static_field(default=50, at_least=1)
    examples_per_client: int = struct.static_field(default=50, at_least=1)
    topic_shift: float = struct.static_field(default=0.8, at_least=0, at_most=1)
    balance_shift: float = struct.static_field(default=0.0, at_least=0, at_most=1)
    polarity: float = struct.static_field(default=0.3, at_least=0, at_most=1)
    agreement: float = struct.static_field(default=0.85, at_least=0, at_most=1)
    name = "synthetic_sentiment"

    def __post_init__(self):
        super().__post_init__()
        checks.whole("min_words", self.min_words, at_least=1, at_most=self.num_words)
        floor = 2 * self.polar_words + 1
        checks.whole("words_per_topic", self.words_per_topic, at_least=floor)

    def count_numbers(self, num_clients: int) -> int:
        """Counts the numbers of the lexicon, the vectors and the sentences."""
        lexicon = self.num_topics * self.words_per_topic * (2 + self.embedding_size)
        return lexicon + 2 * num_clients * self.examples_per_client * self.num_words

    def draw(self, rng: Generator, num_clients: int) -> datasets.Dataset:
        """Draws the lexicon, topics and balances of clients, then sentences."""
        ids, sentiment, topic = self._draw_lexicon(rng)
        embeddings = self._draw_embeddings(rng, sentiment, topic)
        preferred = rng.integers(self.num_topics, size=num_clients)
        positive = (1 + self.balance_shift * rng.uniform(-1, 1, num_clients)) / 2
        client = datasets.owners([self.examples_per_client] * num_clients)
        y = (rng.random(len(client)) < positive[client]).astype(np.int64)
        x = self._draw_words(rng, ids, y, preferred[client])
        length = rng.integers(self.min_words, self.num_words + 1, (len(client), 1))
        x[np.arange(self.num_words) >= length] = 0
        return datasets.Dataset(
            name=self.name,
            x=x,
            y=y,
            num_classes=2,
            class_names=("negative", "positive"),
            client=client,
            cluster=preferred,
            constants={"embeddings": embeddings},
            truth={
                "sentiment": sentiment,
                "topic": topic,
                "preferred": preferred,
                "positive": positive,
            },
        )

    def _draw_lexicon(
        self, rng: Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draws ids `[T, words]`, and sentiment and topic `[V + 1]` by id."""
        shape = (self.num_topics, self.words_per_topic)
        ids = 1 + rng.permutation(shape[0] * shape[1]).reshape(shape)
        # A topic's words are the negative, then the positive, then the neutral ones.
        sentiment = np.zeros(ids.size + 1)
        sentiment[ids[:, : self.polar_words]] = -1
        sentiment[ids[:, self.polar_words : 2 * self.polar_words]] = 1
        topic = np.full(ids.size + 1, -1)
        topic[ids] = np.arange(self.num_topics)[:, None]
        return ids, sentiment, topic

    def _draw_embeddings(
        self, rng: Generator, sentiment: np.ndarray, topic: np.ndarray
    ) -> np.ndarray:
        """Draws the vectors `float32[V + 1, E]`; the first is zero."""
        vectors = rng.standard_normal((len(topic), self.embedding_size))
        vectors += sentiment[:, None] * rng.standard_normal(self.embedding_size)
        directions = rng.standard_normal((self.num_topics, self.embedding_size))
        vectors = 0.5 * (vectors + directions[topic])
        vectors[0] = 0
        return vectors.astype(np.float32)

    def _draw_words(
        self, rng: Generator, ids: np.ndarray, y: np.ndarray, preferred: np.ndarray
    ) -> np.ndarray:
        """Draws the ids `int32[S, num_words]` of sentences of length `num_words`."""
        shape = (len(y), self.num_words)
        agrees = rng.random(shape) < self.agreement
        kind = np.where(agrees, y[:, None], 1 - y[:, None])
        # 0 is negative, 1 positive and 2 neutral.
        kind = np.where(rng.random(shape) < self.polarity, kind, 2)
        is_own = rng.random(shape) < self.topic_shift
        topic = rng.integers(self.num_topics, size=shape)
        topic = np.where(is_own, preferred[:, None], topic)
        count = np.array([self.polar_words, self.polar_words, 0])
        count[2] = self.words_per_topic - count.sum()
        position = self.polar_words * kind + rng.integers(count[kind])
        return ids[topic, position].astype(np.int32)
