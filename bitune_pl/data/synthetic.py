"""The embedded data: two small sets made up by this project, so that everything runs without a network.

They are synthetic and say nothing about the paper's tasks. `categories` asks which of four named things is of a kind;
the words of its validation part never occur in training. `sums` are worded sums whose worked answers end in "#### N",
as GSM8K's do. Both are fixed: the same rows every time, whatever the seed of a run.
"""

from collections.abc import Callable, Iterator
from itertools import count, islice
from random import Random

ROWS = {"train": 2000, "validation": 500}

# kind, as asked for: (words of the training part, words of the validation part). No word fits two kinds.
KINDS = {
    "an animal": (
        "dog cat horse cow pig sheep lion tiger elephant rabbit mouse wolf",
        "goat bear monkey fox deer camel",
    ),
    "a fruit": ("apple banana grape pear cherry mango lemon strawberry peach", "pineapple melon blueberry raspberry"),
    "a vegetable": ("carrot potato onion cabbage spinach broccoli garlic lettuce", "celery cauliflower turnip radish"),
    "a colour": ("red blue green yellow black white brown", "purple grey pink"),
    "a tool": ("hammer saw screwdriver drill wrench shovel axe", "chisel pliers rake"),
    "a piece of clothing": ("shirt jacket hat sock coat dress skirt sweater", "trousers glove scarf blouse"),
    "a vehicle": ("car bus train bicycle truck boat airplane motorcycle", "helicopter tractor van taxi"),
    "a musical instrument": ("piano guitar violin drum flute trumpet cello", "harp clarinet saxophone"),
    "a drink": ("water milk coffee tea juice beer wine", "lemonade cocoa soda"),
    "a part of the body": ("hand foot head arm leg nose ear eye knee", "shoulder elbow finger tongue"),
    "a piece of furniture": ("table chair bed sofa desk wardrobe bookcase", "bench stool cupboard"),
    "a country": ("France Germany Italy Spain China India Brazil Canada Egypt", "Japan Mexico Norway Kenya"),
    "a sport": ("football tennis basketball hockey baseball swimming golf", "volleyball rugby cricket"),
    "a job": ("teacher doctor farmer nurse lawyer baker pilot soldier", "plumber carpenter dentist butcher"),
    "a metal": ("iron gold silver copper aluminium", "zinc lead tin"),
    "a month": ("January February March April June July September October", "August November December"),
    "a language": ("English French German Spanish Chinese Arabic Russian", "Italian Portuguese Japanese"),
    "a number": ("one two three four five six eight ten", "seven nine twelve"),
}

WORDINGS = (
    "Here are four words: {things}. Which one is {kind}?",
    "Think of {things}. Which of these is {kind}?",
    "Someone wrote down {things}. Which of the four is {kind}?",
    "The list says {things}. Which entry is {kind}?",
    "A child says {things}. Which of these words names {kind}?",
    "Only one of {things} is {kind}. Which one is it?",
    "Look at these words: {things}. Which word stands for {kind}?",
    "Anna reads {things} aloud. Which of them is {kind}?",
    "You hear {things}. Which of the words you hear names {kind}?",
    "From {things}, choose the one that is {kind}.",
)

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Frank", "Grace", "Henry", "Julia", "Leo")
THINGS = ("apples", "books", "pencils", "cookies", "marbles", "stamps", "flowers", "balls", "cards", "shells")


def categories(part: str) -> list[dict]:
    """Rows `{question, choices, answer}` of a part; `answer` is the position of the right choice."""
    return _distinct(_category_rows(part), ROWS[part])


def sums(part: str) -> list[dict]:
    """Rows `{question, answer}` of a part; no sum of the validation part is in the training part."""
    rows = _distinct(_sum_rows(), sum(ROWS.values()))
    return rows[: ROWS["train"]] if part == "train" else rows[ROWS["train"] :]


def _distinct(rows: Iterator[tuple[object, dict]], number: int) -> list[dict]:
    """The first rows whose keys differ, so many."""
    seen: set[object] = set()
    fresh = (row for key, row in rows if not (key in seen or seen.add(key)))
    return list(islice(fresh, number))


def _category_rows(part: str) -> Iterator[tuple[object, dict]]:
    draw = Random(f"categories {part}")
    words = {kind: tuple(both[part != "train"].split()) for kind, both in KINDS.items()}
    for i in count():
        kinds = draw.sample(list(words), 4)
        right, *wrong = (draw.choice(words[kind]) for kind in kinds)
        *first, last = draw.sample([right, *wrong], 4)
        question = draw.choice(WORDINGS).format(things=f"{', '.join(first)} and {last}", kind=kinds[0])
        choices = [*wrong[: i % 4], right, *wrong[i % 4 :]]
        yield question, {"question": question, "choices": choices, "answer": i % 4}


def _sum_rows() -> Iterator[tuple[object, dict]]:
    draw = Random("sums")
    while True:
        story = draw.choice(STORIES)
        name, friend = draw.sample(NAMES, 2)
        numbers = tuple(draw.randint(2, 12) for _ in range(3))
        question, steps, result = story(name, friend, draw.choice(THINGS), *numbers)
        yield (story.__name__, numbers), {"question": question, "answer": "\n".join([*steps, f"#### {result}"])}


Story = Callable[[str, str, str, int, int, int], tuple[str, list[str], int]]


def _two_gifts(name: str, friend: str, things: str, a: int, b: int, c: int) -> tuple[str, list[str], int]:
    question = f"{name} has {a} {things}. {friend} gives {name} {b} more, and then {c} more. How many are there now?"
    first = f"After the first gift {name} has {a} + {b} = {a + b} {things}."
    return question, [first, f"After the second gift it is {a + b} + {c} = {a + b + c} {things}."], a + b + c


def _gives_away(name: str, friend: str, things: str, a: int, b: int, c: int) -> tuple[str, list[str], int]:
    a, total = a + c, a + b + c
    question = f"{name} has {a} {things} and finds {b} more. {friend} gets {c} of them. How many {things} are left?"
    first = f"Together that is {a} + {b} = {total} {things}."
    return question, [first, f"After the gift {total} - {c} = {total - c} {things} are left."], total - c


def _bags(name: str, friend: str, things: str, a: int, b: int, c: int) -> tuple[str, list[str], int]:
    question = f"{name} fills {a} bags with {b} {things} each. {friend} brings {c} more. How many are there in all?"
    first = f"The bags hold {a} * {b} = {a * b} {things}."
    return question, [first, f"With those of {friend} there are {a * b} + {c} = {a * b + c} {things}."], a * b + c


def _shares(name: str, friend: str, things: str, a: int, b: int, c: int) -> tuple[str, list[str], int]:
    question = (
        f"{name} shares {a * b} {things} equally among {a} children. {friend}, one of them, had {c} before. "
        f"How many {things} does {friend} have now?"
    )
    first = f"Each child gets {a * b} / {a} = {b} {things}."
    return question, [first, f"{friend} has {c} + {b} = {b + c} {things}."], b + c


def _pays(name: str, friend: str, things: str, a: int, b: int, c: int) -> tuple[str, list[str], int]:
    question = (
        f"{name} buys {a} {things} for {b} dollars each and gives {friend} {c} dollars. "
        f"How many dollars does {name} spend in all?"
    )
    first = f"The {things} cost {a} * {b} = {a * b} dollars."
    return question, [first, f"With the gift {name} spends {a * b} + {c} = {a * b + c} dollars."], a * b + c


STORIES: tuple[Story, ...] = (_two_gifts, _gives_away, _bags, _shares, _pays)
