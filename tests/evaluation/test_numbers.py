from decimal import Decimal

import pytest

from bitune_pl.evaluation.numbers import numbers, spelled, stated


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no idea, none", []),
        ("4, 5, and 6,", ["4", "5", "6"]),
        ("1,234,567.50 and 12,34", ["1234567.50", "12", "34"]),
        ("9\u202f500 and 1{,}072 and 1\\,250", ["9500", "1072", "1250"]),
        ("10-5, 10 - 5, (3)-2, 50%-5", ["10", "5", "10", "5", "3", "2", "50", "5"]),
        ("-5, x = -6, x = - 7, \u22128, -$9, $-10", ["-5", "-6", "-7", "-8", "-9", "-10"]),
        ("They had:\n- 5 apples\n- 6 pears", ["5", "6"]),
        ("<<16-3-4=9>>9", ["16", "3", "4", "9", "9"]),
        (".5 and $.50 and 3.50.", ["0.5", "0.50", "3.50"]),
        ("1/2 and -3/4 and 2 1/2 and 2½ and \\frac{1}{4} and 3\\frac{1}{2}", "0.5 -0.75 2.5 2.5 0.25 3.5".split()),
        ("on 12/25/2020, by 1/0", ["12", "25", "2020", "1", "0"]),
        ("\\$18 or £7 or 20 % or 30%", ["18", "7", "20", "30"]),
    ],
)
def test_numbers_are_read_by_their_value(text, found):
    assert numbers(text) == [Decimal(number) for number in found]


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("$18 a day for 3 days", "18"),
        ("48 / 2 = 24 clips, not 25", "24"),
        ("9 * 2 = $18", "18"),
        ("20 - 2 = 6 * 3 = 18", "18"),
        ("18 (16 - 3 - 4 = 9, twice)", "18"),
        ("x = 72", "72"),
        ("15 = 3 * 5", "15"),
        ("10 + 5 = 15, since 10 = 5 + 5", "15"),
        ("about 72", "72"),
        ("5 + 6 = many", None),
        ("none", None),
    ],
)
def test_a_calculation_states_its_result(line, number):
    assert stated(line) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("number", "text"), [("1072.00", "1072"), ("0.50", "0.5"), ("-5", "-5"), ("1E+3", "1000"), ("-0.0", "0")]
)
def test_equal_numbers_are_spelled_alike(number, text):
    assert spelled(Decimal(number)) == text
