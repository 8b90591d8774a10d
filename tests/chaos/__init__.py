"""Chaos: the real bus and real worker processes under kills, freezes, cut connections and dying servers.

    python -m tests.chaos --seed 7 --jobs 2000 --server redis7

The parts are Jepsen's. `orders` draws what is asked from the seed and `clients` asks for it; `nemesis` deals out
faults; `history` keeps what every client was promised and saw; `aftermath` reads what the server has when all is
quiet; and `checker` holds one against the other. The seed decides what is asked and which fault comes when, not how
the machine interleaves them: a seed that found something finds it again often, not always.

Workers are the real ones, with an engine whose every word is a function of the job's id. Servers write their log
through (`appendfsync always`), so that nothing they acknowledged may be missing after `kill -9`. Under `everysec` some
of it may, and a checker that forgives a loss forgives too much.
"""
