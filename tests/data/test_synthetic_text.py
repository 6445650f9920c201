"""Generated sentences: what can be known of them, and that a network learns it."""

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.data import SyntheticSentiment, sources


def load(seed=0, num_clients=40, **options):
    source = SyntheticSentiment(**options)
    return source.load(data_dir=None, seed=seed, num_clients=num_clients)


def positive_less_negative(dataset):
    """Positive words of each sentence less its negative ones, word by word."""
    sentiment = dataset.truth["sentiment"]
    return np.array([sum(sentiment[word] for word in words) for words in dataset.x])


def majority(labels):
    return np.bincount(labels, minlength=2).max() / len(labels)


def test_a_bag_of_words_knows_most_of_it():
    for seed in range(3):
        dataset = load(seed)
        score = positive_less_negative(dataset)
        # Measured: 0.94 to 0.95, and 0.51 to 0.52 for the most frequent class.
        accuracy = np.mean((score > 0) == dataset.y)
        assert 0.9 < accuracy < 0.98
        assert majority(dataset.y) < 0.6
    clients = [majority(dataset.y[dataset.client == k]) for k in range(40)]
    assert np.mean(clients) < 0.6


def test_agreement_is_the_odds_of_a_word():
    dataset = load(examples_per_client=500, agreement=0.7, polarity=0.4)
    sentiment = dataset.truth["sentiment"][dataset.x]
    sign = np.where(dataset.y[:, None] == 1, 1, -1)
    num_words, num_polar = (dataset.x > 0).sum(), (sentiment != 0).sum()
    agreeing = (sentiment == sign).sum() / num_polar
    assert abs(agreeing - 0.7) < 5 * np.sqrt(0.21 / num_polar)
    assert abs(num_polar / num_words - 0.4) < 5 * np.sqrt(0.24 / num_words)


def test_shifted_balances_are_worth_knowing():
    dataset = load(examples_per_client=400, balance_shift=0.8)
    positive = dataset.truth["positive"]
    shares = np.array([dataset.y[dataset.client == k].mean() for k in range(40)])
    assert 0.1 <= positive.min() < 0.2 and 0.8 < positive.max() <= 0.9
    assert np.abs(shares - positive).max() < 5 * np.sqrt(0.25 / 400)
    score = positive_less_negative(dataset)
    prior = np.log(positive / (1 - positive))[dataset.client]
    blind, best = (
        np.mean((score * np.log(0.85 / 0.15) + k * prior > 0) == dataset.y)
        for k in (0, 1)
    )
    # Measured: 0.94 and 0.96.
    assert blind + 0.005 < best < 0.98
    assert (load().truth["positive"] == 0.5).all()


@pytest.mark.parametrize("topic_shift", [0.0, 0.8, 1.0])
def test_clients_prefer_words_of_their_topic(topic_shift):
    dataset = load(topic_shift=topic_shift, num_topics=4)
    topic = dataset.truth["topic"][dataset.x]
    is_own = topic == dataset.truth["preferred"][dataset.client][:, None]
    words = dataset.x > 0
    share = is_own[words].mean()
    wanted = topic_shift + (1 - topic_shift) / 4
    assert abs(share - wanted) <= 5 * np.sqrt(0.25 / words.sum())
    assert topic_shift < 1 or share == 1
    np.testing.assert_array_equal(dataset.cluster, dataset.truth["preferred"])
    assert set(dataset.truth["preferred"]) == set(range(4))


def test_words_are_numbered_and_padded_as_tweets_are():
    dataset = load(num_words=10, min_words=3, examples_per_client=200)
    assert dataset.x.dtype == np.int32 and dataset.x.shape == (8000, 10)
    assert dataset.num_classes == 2 and set(dataset.y) == {0, 1}
    lengths = (dataset.x > 0).sum(axis=1)
    assert set(lengths) == set(range(3, 11))
    for words, length in zip(dataset.x, lengths, strict=True):
        assert (words[:length] > 0).all() and not words[length:].any()
    vectors = dataset.constants["embeddings"]
    assert vectors.dtype == np.float32 and vectors.shape == (501, 50)
    assert not vectors[0].any() and (np.abs(vectors[1:]).max(axis=1) > 0).all()
    assert set(dataset.x.ravel()) == set(range(501))


def test_the_lexicon_has_the_promised_words():
    dataset = load(num_topics=3, words_per_topic=11, polar_words=4)
    sentiment, topic = dataset.truth["sentiment"], dataset.truth["topic"]
    assert len(sentiment) == 34 and (sentiment[0], topic[0]) == (0, -1)
    for t in range(3):
        own = sentiment[topic == t]
        assert [(own == s).sum() for s in (-1, 1, 0)] == [4, 4, 3]
    # Within its topic and sentiment every word is as frequent as any other.
    words = np.bincount(
        load(
            num_topics=1, words_per_topic=11, polar_words=4, examples_per_client=500
        ).x.ravel()
    )[1:]
    for rate, group in ((0.3 / 8, 8), (0.7 / 3, 3)):
        near = np.abs(words / words.sum() - rate) < 5 * np.sqrt(rate / words.sum())
        assert near.sum() == group


@pytest.mark.wide
def test_an_lstm_learns_it():
    source = SyntheticSentiment(
        num_words=8, min_words=5, embedding_size=8, polarity=0.6, agreement=1.0
    )
    spec = fp.FederationSpec(source, "by_client", num_clients=6, test_fraction=0.3)
    federation = spec.build()
    model = fp.models.LSTM(width=8, num_layers=1, bottleneck=None).for_federation(
        federation
    )
    train = federation.train
    params = model.init(jax.random.key(0))
    outputs = model.apply(params, train.x[:3], constants=train.constants)
    assert outputs.shape == (3, 2) and np.isfinite(outputs).all()
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=fp.SGD(learning_rate=1.0, batch_size=10, epochs=5))
    )
    result = fp.simulate(
        jax.random.key(0), process, model, federation, 10, progress=False
    )
    (group,) = result.groups
    test = group.metrics["accuracy"][0, :, 0, group.data.index("test")].mean(axis=-1)
    # Measured: 0.58 before and 0.9 and more after the first rounds; 90 test sentences.
    assert test[0] < 0.7 and test[-3:].mean() > 0.8


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_words": 0}, "num_words .* at least 1, got 0"),
        ({"min_words": 26}, "min_words .* at most 25, got 26"),
        ({"min_words": 0}, "min_words .* at least 1, got 0"),
        ({"polar_words": 0}, "polar_words .* got 0"),
        ({"words_per_topic": 40}, "words_per_topic .* at least 41, got 40"),
        ({"num_topics": 1.5}, "num_topics .* got 1.5"),
        ({"embedding_size": 0}, "embedding_size .* got 0"),
        ({"examples_per_client": 0}, "examples_per_client .* got 0"),
        ({"topic_shift": 1.1}, "topic_shift .* at most 1, got 1.1"),
        ({"balance_shift": -0.1}, "balance_shift .* got -0.1"),
        ({"polarity": float("nan")}, "polarity .* got nan"),
        ({"agreement": "most"}, "agreement .* got 'most'"),
        ({"words_per_topic": 2**31 - 1}, "would take .* GB of memory"),
        ({"examples_per_client": 2**31 - 1}, "would take .* GB of memory"),
    ],
)
def test_wrong_options_get_a_sentence(options, sentence):
    with pytest.raises(checks.InputError, match=sentence) as error:
        sources.load_dataset("synthetic_sentiment", **options)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)
