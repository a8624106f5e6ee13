"""The random stream equals that of std::mt19937 with libstdc++'s uniform_real_distribution."""

from __future__ import annotations

import pytest

from pyllama.sampling import RANDOM_SEED, Mt19937
from pyllama.sampling import rng as rng_module

# seed: three doubles, then two floats of one stream, printed with %.17g by a g++ program
GOLDEN = {
    0: (
        0.59284461651668263,
        0.84426574425659828,
        0.85794561998982988,
        0.54488319158554077,
        0.84725171327590942,
    ),
    42: (
        0.79654298428784598,
        0.18343478789336848,
        0.77969099761266125,
        0.59865850210189819,
        0.59685015678405762,
    ),
    5489: (
        0.1354770042967805,
        0.8350085899945795,
        0.96886777112423139,
        0.9133758544921875,
        0.22103404998779297,
    ),
    4294967294: (
        0.10184899170898529,
        0.94789751258733013,
        0.82893340139475558,
        0.6077347993850708,
        0.37232929468154907,
    ),
}


def test_raw_words_of_the_default_seed() -> None:
    rng = Mt19937(5489)
    assert [rng.raw() for _ in range(3)] == [3499211612, 581869302, 3890346734]


def test_raw_words_past_the_first_state() -> None:
    rng = Mt19937(42)
    assert [rng.raw() for _ in range(2001)][-1] == 795139886


@pytest.mark.parametrize("seed", GOLDEN)
def test_uniform_numbers(seed: int) -> None:
    rng = Mt19937(seed)
    got = (*(rng.uniform_double() for _ in range(3)), *(rng.uniform_float() for _ in range(2)))
    assert got == GOLDEN[seed]


def test_uniform_numbers_stay_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mt19937, "raw", lambda _: 0xFFFFFFFF)
    assert Mt19937(1).uniform_double() == 1 - 2.0**-53
    assert Mt19937(1).uniform_float() == 1 - 2.0**-24


def test_reset_starts_again() -> None:
    rng = Mt19937(7)
    first = [rng.raw() for _ in range(5)]
    rng.reset()
    assert [rng.raw() for _ in range(5)] == first and rng.seed == 7


@pytest.mark.parametrize("seed", [-1, RANDOM_SEED])
def test_a_random_seed_is_drawn_on_every_reset(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = iter([11, 12])
    monkeypatch.setattr(rng_module, "urandom", lambda n: next(seeds).to_bytes(n, "little"))
    rng = Mt19937(seed)
    assert rng.seed == 11 and rng.raw() == Mt19937(11).raw()
    rng.reset()
    assert rng.seed == 12 and rng.raw() == Mt19937(12).raw()


def test_words_that_are_passed_over() -> None:
    drawn, skipped = Mt19937(7), Mt19937(7)
    words = [drawn.raw() for _ in range(400)]
    skipped.n_skip += 2
    assert skipped.raw() == words[2]
    skipped.n_skip += 3
    skipped.n_skip += 30
    assert [skipped.raw(), skipped.raw()] == words[36:38]
    skipped.n_skip += 300  # more than are drawn at once
    assert skipped.raw() == words[338]
    skipped.n_skip += 5
    skipped.reset()
    assert skipped.raw() == words[0]
