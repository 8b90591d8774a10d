"""GBNF means what it means in llama.cpp, whatever of it is read in one go."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.jobs import Constraint
from tests.worker.grammar.conftest import Accepts
from worker.grammar.gbnf import BadGrammar, Rules, read
from worker.grammar.lark import lark_of
from worker.grammar.lexemes import find_lexemes
from worker.grammar.nodes import Characters, Choice, Node, Reference, Repeat, Row

JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
TEXT = '{"a é😀\\n": [1, -2.5e3, {}, [], null],\n\t"b": {"c": "d\\u00e9"}}'


@pytest.mark.parametrize(
    ("grammar", "sentences", "others"),
    [
        ('root ::= "alpha beta"', ["alpha beta"], ["alpha", "alpha beta ", ""]),
        (r'root ::= "\"\\\n\t\x41\u00e9\U0001F600"', ['"\\\n\tAé😀'], ['"\\\n\tA']),
        (r"root ::= [^a\]] [\]-a] [a-] [-z]", ["b]-z", "z^a-"], ["a]-z", "bb-z", "b]bz"]),
        ('root ::= "a"{2} "b"{1,2} "c"{2,} "d"{0,1}', ["aabcc", "aabbcccd"], ["abcc", "aabbbcc", "aabc", "aabccdd"]),
        ('root ::= ("a"? "b"*)+ "c"', ["c", "abbac"], ["ab", "cc"]),
        ('root ::= "日" . "本"', ["日\n本", "日😀本"], ["日本", "日ab本"]),
        ('root ::= (\n "a" # one\n | "b" )\n# end\n', ["a", "b"], ["ab"]),
        ('root ::= a-b\na-b ::= x1 |\n x_2\nx1 ::= [0-9]\nx_2 ::= "y" x1', ["5", "y5"], ["y"]),
        ('root ::= ""', [""], ["a"]),
        ('root ::= | "a"', ["", "a"], ["aa"]),
        ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a", "ab"]),
        ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["((x)", "()"]),
        # What follows could be taken for more of what comes before: no lexeme may swallow it.
        ('root ::= word "b"\nword ::= [a-z]+', ["ab", "bbb"], ["b", "aa"]),
        ('root ::= word "b" | "(" root ")"\nword ::= [a-z]+', ["ab", "(bbb)"], ["b", "(a)"]),
        ('root ::= x | "(" root ")"\nx ::= "a" | "ab" | x "bc" x', ["ab", "abca", "abbcab"], ["abb", "abbca(a)"]),
        ('root ::= x "b" | "(" root ")"\nx ::= "a" | "ab"', ["ab", "(abb)"], ["a", "(aa)"]),
        ('root ::= s "b"\ns ::= s s | [a-z] | ""', ["b", "aab"], ["a"]),
        ('root ::= "if" " "? root | [a-z]+ ("=" root)?', ["if", "iff=if x", "ifx"], ["if=", "=if"]),
        (JSON, [TEXT, "{}"], [TEXT[:-1], "[]", '{"a":01}', '{"a": \n\n1}', '{"a":"\n"}']),
    ],
)
def test_sentences_are_taken_and_others_are_not(
    accepts: Accepts, grammar: str, sentences: list[str], others: list[str]
) -> None:
    constraint = Constraint(syntax="gbnf", text=grammar)
    assert [text for text in sentences if not accepts(constraint, text)] == []
    assert [text for text in others if accepts(constraint, text)] == []


ATOMS = st.sampled_from(['"a"', '"ab"', '"b"', '"ba"', "[ab]", "[^b]", "root", "x", "y"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(" ".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]} | {pair[1]})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{1,3}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=5,
)


def is_sentence(rules: Rules, text: str) -> bool:
    """By the definition: the places that each rule can lead to from each place, until there are no more."""
    reached: dict[tuple[str, int], frozenset[int]] = {}

    def ends(node: Node, start: int) -> frozenset[int]:
        match node:
            case Characters(ranges):
                is_one = start < len(text) and any(first <= ord(text[start]) <= last for first, last in ranges)
                return frozenset({start + 1} if is_one else ())
            case Reference(name):
                return reached.get((name, start), frozenset())
            case Row(parts):
                places = frozenset({start})
                for part in parts:
                    places = frozenset().union(*(ends(part, place) for place in places))
                return places
            case Choice(options):
                return frozenset().union(*(ends(option, start) for option in options))
            case Repeat(part, least, most):
                found, places = frozenset[int](), frozenset({start})
                for count in range(least + len(text) + 1 if most is None else most + 1):
                    found |= places if count >= least else frozenset()
                    places = frozenset().union(*(ends(part, place) for place in places))
                return found
        raise AssertionError(node)

    while reached != (
        reached := {(name, at): ends(node, at) for name, node in rules.items() for at in range(len(text) + 1)}
    ):
        pass
    return len(text) in reached["root", 0]


@settings(max_examples=200, deadline=None)
@given(root=EXPRESSIONS, x=EXPRESSIONS, text=st.text("ab", max_size=6))
def test_lexemes_change_nothing(accepts: Accepts, root: str, x: str, text: str) -> None:
    grammar = f'root ::= {root} | "b"\nx ::= {x} | "a"\ny ::= [ab]* "a"'
    assert accepts(Constraint(syntax="gbnf", text=grammar), text) == is_sentence(read(grammar), text)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("", "no rule 'root'"),
        ('x ::= "a"', "no rule 'root'"),
        ("root ::= bar", "no rule 'bar'"),
        ('root = "a"', "expected '::='"),
        ('root ::= "a', "found the end"),
        ("root ::= [a", "found the end"),
        ('root ::= ("a"', "expected ')'"),
        ('root ::= "a" )', "the end of the rule"),
        ("root ::= []", "a character"),
        ("root ::= [b-a]", "ascending"),
        (r'root ::= "\q"', "escape"),
        (r'root ::= "\ud800"', "escape"),
        (r'root ::= "\U00110000"', "escape"),
        ('root ::= "a"{2', "repetitions"),
        ('root ::= "a"{3,2}', "repetitions"),
        ('root ::= "a"{2001}', "at most 2000 repetitions"),
        ("root ::= x\n" + "x ::= y\n" * 2 + "".join(f"y{n} ::= x\n" for n in range(2001)), "at most 2000 rules"),
        (f'root ::= "{"a" * 20_001}"', "at most 20000"),
        ("root ::= " + "(" * 51 + '"a"' + ")" * 51, "nested"),
        ('root ::= "a"\n\nroot ::= !', "line 3"),
    ],
)
def test_what_is_no_grammar_is_refused_with_the_place(grammar: str, reason: str) -> None:
    with pytest.raises(BadGrammar, match=reason.replace("(", r"\(").replace(")", r"\)")) as caught:
        lark_of(Constraint(syntax="gbnf", text=grammar))
    assert "\n" not in str(caught.value)


def test_a_usual_grammar_is_read_in_large_parts() -> None:
    lexemes = find_lexemes(read(JSON), "root")
    assert not lexemes.split & {"string", "ws"}
    assert "number" in lexemes.regular


def test_a_token_can_be_named_by_its_number(accepts: Accepts) -> None:
    constraint = Constraint(syntax="gbnf", text='root ::= "a" <[98]> !<[97]> "d"')
    assert accepts(constraint, "abcd")
    assert not accepts(constraint, "abad")
