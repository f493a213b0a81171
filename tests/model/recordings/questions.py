"""What is asked, in which form, and what counts as right.

The list of questions is fixed by the tables and one seed before any answer is seen. Prompts are
ASCII (the server loses text of several bytes per token when asked for logprobs) and show by two
examples that the answer comes first and six remarks on it after, which makes answers of the length
that a cut is worth something for.

The rule for right (`is_right`) reads the first words only: an answer that begins wrong and corrects
itself later is wrong, one that begins right and explains nonsense is right. That is the claim a
gate on early tokens can be held to, and all that the recordings' `correct` says.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from tests.model.recordings.facts import CAPITALS, ELEMENTS
from tests.model.server import ALIAS

Dialect: TypeAlias = Literal["chat", "completions"]

SEED: Final = 20261201
FAMILIES: Final = ("capital", "sum", "element", "product")
MAX_TOKENS: Final = 160
ALTERNATIVES: Final = 2

_SYSTEM: Final = "Answer in one word first. Then give six remarks, numbered (1) to (6)."
_CAPITAL_SHOTS: Final = (
    (
        "What is the capital of France?",
        "Paris. (1) It lies on the river Seine in the north of the country. (2) It has been the "
        "seat of the government for most of the last thousand years. (3) It is the largest city "
        "of the country. (4) The railways and roads of the country meet there. (5) It is known "
        "for its museums and theatres. (6) Millions of people visit it every year.",
    ),
    (
        "What is the capital of Japan?",
        "Tokyo. (1) It lies on the island of Honshu, at the head of a wide bay. (2) It became the "
        "capital in the nineteenth century. (3) Before that it was a castle town named Edo. (4) "
        "The parliament and the ministries are there. (5) The palace of the emperor stands in its "
        "middle. (6) It is one of the largest cities in the world.",
    ),
)
_SUM_SHOTS: Final = (
    (
        "What is 12 + 5?",
        "17. (1) The first number has one ten and two ones. (2) The second number has five ones. "
        "(3) Adding the ones gives two plus five, which is seven. (4) There is one ten to keep. "
        "(5) So the result has one ten and seven ones. (6) Counting up five steps from twelve "
        "leads to the same number.",
    ),
    (
        "What is 31 + 24?",
        "55. (1) The first number has three tens and one one. (2) The second number has two tens "
        "and four ones. (3) Adding the ones gives one plus four, which is five. (4) Adding the "
        "tens gives three plus two, which is five. (5) So the result has five tens and five ones. "
        "(6) Nothing had to be carried.",
    ),
)
_PRODUCT_SHOTS: Final = (
    (
        "What is 3 times 4?",
        "12. (1) Three times four means adding the number four three times. (2) Four plus four is "
        "eight. (3) Eight plus four is twelve. (4) The order of the two numbers does not matter. "
        "(5) Adding the number three four times gives three, six, nine, twelve. (6) So the result "
        "is the same in both ways.",
    ),
    (
        "What is 5 times 7?",
        "35. (1) Five times seven means adding the number seven five times. (2) The steps are "
        "seven, fourteen, twenty-one, twenty-eight, thirty-five. (3) Every multiple of five ends "
        "in zero or in five. (4) Seven is odd, so this one ends in five. (5) Half of seventy is "
        "also thirty-five. (6) So the result is the same in both ways.",
    ),
)
_ELEMENT_SHOTS: Final = (
    (
        "Which chemical element has the symbol O?",
        "Oxygen. (1) It is a gas without colour or smell. (2) It makes up about one fifth of the "
        "air. (3) Almost all animals need it to breathe. (4) It has eight protons in its nucleus. "
        "(5) Together with hydrogen it forms water. (6) Its symbol is the first letter of its "
        "name.",
    ),
    (
        "Which chemical element has the symbol Fe?",
        "Iron. (1) It is a grey and hard metal. (2) It is used in tools, machines, ships and "
        "buildings, mostly as steel. (3) It has twenty-six protons in its nucleus. (4) It rusts in "
        "wet air. (5) It is drawn by magnets. (6) Its symbol comes from its Latin name, ferrum.",
    ),
)
_SHOTS: Final = {
    "capital": _CAPITAL_SHOTS,
    "sum": _SUM_SHOTS,
    "element": _ELEMENT_SHOTS,
    "product": _PRODUCT_SHOTS,
}
_DIALECTS: Final[dict[str, Dialect]] = {
    "capital": "completions",
    "sum": "completions",
    "element": "chat",
    "product": "chat",
}


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        name: unique, lower case, of letters, digits and hyphens.
        truth: accepted answers, joined by bars.
    """

    family: str
    name: str
    text: str
    truth: str

    @property
    def dialect(self) -> Dialect:
        """The endpoint it is asked through."""
        return _DIALECTS[self.family]

    @property
    def path(self) -> str:
        """Its path below the base URL."""
        return "/chat/completions" if self.dialect == "chat" else "/completions"

    def request(self) -> dict[str, Any]:
        """The body: the two examples, then the question."""
        common = {
            "model": ALIAS,
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "seed": SEED,
            "stream": True,
        }
        shots = _SHOTS[self.family]
        if self.dialect == "chat":
            turns = [
                turn for shot in shots for turn in zip(("user", "assistant"), shot, strict=True)
            ]
            messages = [("system", _SYSTEM), *turns, ("user", self.text)]
            return {
                **common,
                "messages": [{"role": role, "content": text} for role, text in messages],
                "logprobs": True,
                "top_logprobs": ALTERNATIVES,
            }
        examples = "".join(f"Question: {asked}\nAnswer: {told}\n\n" for asked, told in shots)
        return {
            **common,
            "prompt": f"{examples}Question: {self.text}\nAnswer:",
            "logprobs": ALTERNATIVES,
            "stop": ["\n"],
        }


def questions() -> dict[str, list[Question]]:
    """Every question there is, by family, each list in the order it is asked."""
    found = {
        "capital": [
            Question("capital", _name(country), f"What is the capital of {country}?", capital)
            for country, capital in CAPITALS.items()
        ],
        "element": [
            Question("element", symbol, f"Which chemical element has the symbol {symbol}?", name)
            for symbol, name in ELEMENTS.items()
        ],
        "sum": [
            Question("sum", f"{a}-{b}", f"What is {a} + {b}?", str(a + b))
            for a in range(2, 20)
            for b in range(2, 10)
            if (a, b) != (12, 5)
        ],
        "product": [
            Question("product", f"{a}-{b}", f"What is {a} times {b}?", str(a * b))
            for a in range(2, 14)
            for b in range(2, 14)
            if (a, b) not in {(3, 4), (4, 3), (5, 7), (7, 5)}
        ],
    }
    for family in FAMILIES:
        random.Random(f"{SEED} {family}").shuffle(found[family])
    return found


def is_right(text: str, truth: str) -> bool:
    """Whether an answer begins with an accepted answer, word for word.

    Case, punctuation and a leading "the" do not count. `"17. The ..."` is right for `17`,
    `"170"` is not.
    """
    words = _words(text)
    if words[:1] == ["the"]:
        words = words[1:]
    return any(words[: len(accepted)] == accepted for accepted in map(_words, truth.split("|")))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _name(text: str) -> str:
    return "-".join(_words(text))
