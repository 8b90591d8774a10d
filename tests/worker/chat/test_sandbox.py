"""A template comes with a file that somebody else made: whatever it does, it ends soon and makes nothing large."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from shared.errors import InvalidRequest
from shared.jobs import Chat
from tests.worker.chat.templates import HERMES
from worker.chat import ChatTemplate, Dialect, Template
from worker.chat import budget as limits
from worker.engine import LoadFailed
from worker.opening import learn

HELLO = Chat(messages=({"role": "user", "content": "Hi"},))
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
GROWING = "{%% set ns = namespace(a=%s) %%}{%% for i in range(99999) %%}{%% set ns.a = %s %%}{%% endfor %%}{{ ns.a }}"
LONG = "{% set a = 'a' * 1000000 %}"

ENDLESS = [
    LOOPS,
    "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}x{% endfor %}{% endfor %}",
    "{% set l = range(99999) | list %}{% for i in l %}{% for j in l %}{{ j }}{% endfor %}{% endfor %}",
    "{% for a in 'aaaaaaaaaa' %}" * 12 + "x" + "{% endfor %}" * 12,
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call f() %}" * 18 + "x" + "{% endcall %}" * 18,
    "{% for i in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
    "{% for i in range(99999) %}{{ range(99999) | max }}{% endfor %}",
    "{% for i in range(99999) %}{{ range(99999) | select('eq', -1) | first }}{% endfor %}",
    "{% set l = range(99999) | list %}{% for i in l %}{% if 'a' in l %}{% endif %}{% endfor %}",
    LONG + "{% for i in range(99999) %}{{ a.count('b') }}{% endfor %}",
    LONG + "{% for i in range(99999) %}{{ a | wordcount }}{% endfor %}",
    LONG + "{% for i in range(99999) %}{{ a[1:] }}{% endfor %}",
]
LARGE = [
    "{{ (messages | length + 9) ** (10 ** 10) }}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ [1] * 10 ** 10 }}",
    GROWING % ("3", "ns.a * ns.a"),
    GROWING % ("'xx'", "ns.a + ns.a"),
    GROWING % ("'xx'", "ns.a ~ ns.a"),
    GROWING % ("[1]", "ns.a + ns.a"),
    GROWING % ("[1]", "[ns.a, ns.a]"),
    GROWING % ("1", "{'a': ns.a, 'b': ns.a}"),
    GROWING % ("1", "dict(a=ns.a, b=ns.a)"),
    GROWING % ("(1,)", "(ns.a,)"),
    GROWING % ("(1,)", "() + (ns.a,)"),
    "{% set ns = namespace(a='xx') %}{% for i in range(60) %}"
    "{% set x %}{{ ns.a }}{{ ns.a }}{% endset %}{% set ns.a = x %}{% endfor %}",
    "{{ 'x' | center(width=10 ** 10) }}",
    "{{ 'x'.ljust(10 ** 10) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%.1000000000f' | format(1.0) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
    LONG + "{{ a.replace('a', a) }}",
    LONG + "{{ a | replace(old='a', new=a) }}",
    LONG + "{{ a.join(['x'] * 1000) }}",
    LONG + "{{ range(99999) | join(d=a) }}",
    LONG + "{{ range(99999) | map(attribute='none', default=a) | tojson }}",
    LONG + "{{ [1] | batch(9999, a) | first | join }}",
    "{{ ('\\n' * 1000000) | indent(1000000) }}",
    "{{ messages | tojson(indent=10 ** 9) }}",
    "{{ [1] | batch(linecount=10 ** 10, fill_with='x') | list }}",
    "{{ 1.5 | round(10 ** 10, 'ceil') }}",
    "{{ ([[1]] * 10000) | sum(start=[]) }}",
]


@pytest.mark.parametrize("source", ENDLESS + LARGE)
def test_a_template_that_does_too_much_is_stopped_soon(source: str) -> None:
    began = time.thread_time()
    with pytest.raises(InvalidRequest, match="the chat template does too much: it ") as refusal:
        ChatTemplate(source).render(HELLO)
    assert refusal.value.param == "messages"
    assert time.thread_time() - began < 2.0  # half a second, where nothing slows the machine down


def test_without_a_bound_on_steps_the_same_template_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    source = "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}done"
    with pytest.raises(InvalidRequest, match="too many steps"):
        ChatTemplate(source).render(HELLO)
    monkeypatch.setattr(limits, "STEPS", 10**9)
    monkeypatch.setattr(limits, "SECONDS", 60.0)
    assert ChatTemplate(source).render(HELLO) == "done"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
            "1/3,2/3,3/3",
        ),
        ("{% for i in range(100) %}{{ i if loop.last }}{% endfor %}", "99"),
        ("{% for i in range(200) if i % 2 %}{{ loop.length if loop.last }}{% endfor %}", "100"),
        ("{% for i in none_such %}x{% else %}none{% endfor %}", "none"),
        ("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k ~ v }}{% endfor %}", "a1b2"),
        ("{% for i in [[], [[]]] recursive %}({{ loop(i) }}){% endfor %}", "()(())"),
        ("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        (
            "{% set ns = namespace(l=[]) %}{% for i in range(3) %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}",
            "[0, 1, 2]",
        ),
        ("{{ 1 + 2 + 3 }}{{ 'a' + 'b' + messages[0].content + 'c' }}{{ (1, 2) + (3,) }}", "6abHic(1, 2, 3)"),
        ("{{ 2 ** 10 }}{{ 7 % 4 }}{{ '%s-%02d' % ('a', 3) }}{{ '-' * 3 }}{{ '{:>3}'.format(1) }}", "10243a-03---  1"),
        ("{{ [1, 2, 3, 4, 5] | batch(linecount=2, fill_with=0) | list }}", "[[1, 2], [3, 4], [5, 0]]"),
        ("{{ messages | map(attribute='content') | join(', ') }}{{ ['b', 'a'] | sort | join(d='-') }}", "Hia-b"),
        ("{{ 'a\\nb' | indent(2) }}|{{ 'x'.join(['a', 'b']) }}|{{ 'aa'.replace('a', 'b') }}", "a\n  b|axb|bb"),
        ("{{ messages | map(attribute='role') | tojson }}{{ [1, 2] | sum }}{{ 2.5 | round(1) }}", '["user"]32.5'),
        (
            "{% macro f(a, b=2) %}{{ a + b }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}"
            "{% call f(2) %}!{% endcall %}",
            "34!",
        ),
    ],
)
def test_what_templates_do_is_as_in_jinja(source: str, text: str) -> None:
    assert ChatTemplate(source).render(HELLO) == text


def test_many_messages_and_long_ones_have_the_budget_that_they_need() -> None:
    turns = tuple({"role": ("user", "assistant")[i % 2], "content": "Hello there. " * 20} for i in range(10_000))
    assert ChatTemplate(HERMES).render(Chat(messages=turns)).count("<|im_start|>") == 10_001
    backwards = (
        "{% for m in messages[::-1] %}{% set i = messages | length - 1 - loop.index0 %}{{ messages[i].role[0] }}"
    )
    assert ChatTemplate(backwards + "{% endfor %}").render(Chat(messages=turns)) == "au" * 5_000
    long = Chat(messages=({"role": "user", "content": "👋" * 5_000_000},))
    assert len(ChatTemplate(HERMES).render(long)) > 5_000_000
    listing = (
        "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m] %}{% endfor %}"
        "{{ ns.l | length }}"
    )
    assert ChatTemplate(listing).render(Chat(messages=turns)) == "10000"


def test_renderings_in_threads_have_a_budget_each() -> None:
    source = "{% for i in range(400) %}{% for j in range(1000) %}{% endfor %}{% endfor %}done"
    template, said = ChatTemplate(source), []
    threads = [threading.Thread(target=lambda: said.append(template.render(HELLO))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == ["done"] * 3


async def test_a_model_whose_template_runs_away_is_given_up_at_the_start() -> None:
    with pytest.raises(LoadFailed, match="name another template with --chat-template: the chat template does too much"):
        await learn(Dialect(ChatTemplate("{% if tools %}" + LOOPS + "{% endif %}")))


async def test_a_worker_that_learns_goes_on_with_the_rest_and_can_be_told_to_leave() -> None:
    began, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class Slow(Template):
        source = "slow"

        def _render(self, *_: object, **__: object) -> str:
            loop.call_soon_threadsafe(began.set)
            may_end.wait()
            return ""

    learning = asyncio.create_task(learn(Dialect(Slow())))
    await began.wait()
    learning.cancel()
    try:
        with pytest.raises(asyncio.CancelledError):
            await learning
    finally:
        may_end.set()
