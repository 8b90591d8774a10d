from shared.events import ChosenLogprob, Tokens
from worker.past import Past, pasts_of


def said(index: int, *ids: int, memory: tuple[float, ...] = ()) -> Tokens:
    logprobs = tuple(ChosenLogprob(id=token, piece="", logprob=-1.0) for token in ids)
    return Tokens(index=index, ids=ids, text="", logprobs=logprobs, memory=memory)


def test_each_sequence_has_its_own_past_and_the_last_memory() -> None:
    log = [said(1, 5, memory=(0.5,)), said(0, 7), said(1, 6, 8, memory=(0.25,))]
    pasts = pasts_of(log)
    assert pasts[0] == Past([7], list(said(0, 7).logprobs))
    assert pasts[1] == Past([5, 6, 8], list(said(1, 5, 6, 8).logprobs), (0.25,))
    assert 2 not in pasts and pasts_of([]) == {}
