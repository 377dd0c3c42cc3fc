"""The simulated judges: scores worked out by hand, orderings written before the scores were seen, and hostile input."""

import random
import re
from itertools import combinations, product
from pathlib import Path
from statistics import pstdev

import pytest
from support.import_scanner import imported_names, imports_module, package_of

from rlhf_lab.common.bundled_assets import EVERYDAY, PROMPT_SETS
from rlhf_lab.common.enums import Choice
from rlhf_lab.errors import ConfigError
from rlhf_lab.judges import builtin
from rlhf_lab.judges.builtin import JUDGES, SCORE_STEP, Judge, load_judge, prefer

PACKAGE = Path(builtin.__file__).parent
STORY_JUDGES = {
    name: judge for name, judge in JUDGES.items() if judge.prompt_set != EVERYDAY
}  # others: test_everyday.py

# Worked out by hand from the formulae in judges/builtin.py; the working stands beside each score.
# x / (|x| + half) is applied to total / sqrt(words), where 9 words or fewer count as 9, so sqrt is 3.
BY_HAND = [
    ("cheerful", "The happy dog laughed.", 4.0),  # 2 + 2 = 4; 4/3; 13.33 / 3.33 = 4
    ("cheerful", "The dog was not happy.", -1.5),  # -0.5 x 2 = -1; -1/3; -3.33 / 2.33 = -1.43
    ("cheerful", "She was very sad.", -3.25),  # 1.5 x -2 = -3; -1; -10 / 3 = -3.33
    ("cheerful", "happy happy happy", 3.0),  # 2 + 0.5 + 0.125 = 2.625; 0.875; 8.75 / 2.875 = 3.04
    ("cheerful", "What a wonderful gift!", 4.75),  # 3 + 2 + 0.5 = 5.5; 1.83; 18.33 / 3.83 = 4.78
    # kind 2, gave 1, poor -2, warm 1, cake 1 = 3; sixteen words, so 3/4; 7.5 / 2.75 = 2.73
    ("cheerful", "The kind king gave the poor girl a warm coat and a cake before winter came.", 2.75),
    ("gloomy", "The rain fell on the grave.", 4.5),  # gloom 2 + 1 + 3, valence -1 - 2: 7.5; 2.5; 25 / 5.5 = 4.55
    ("gloomy", "Everyone laughed in the sun.", -3.25),  # gloom -2 - 1, valence 2 + 1: -4.5; -1.5; -15 / 4.5 = -3.33
    ("gloomy", "He stood alone.", 2.25),  # gloom 2, valence -1: 2.5; 0.833; 8.33 / 3.83 = 2.17
    ("gloomy", "There was no rain.", -1.25),  # -0.5 x (2 + 0.5) = -1.25; -0.417; -4.17 / 3.42 = -1.22
    ("polite", "Thank you, and please call us.", 4.0),  # 2 + 2 = 4; 4/3; 13.33 / 3.33 = 4
    ("polite", "Thank you so much.", 3.25),  # the longest phrase counts, 3, not "thank you", 2
    ("polite", "Shut up, you idiot.", -5.0),  # -3 - 3 = -6; -2; -20 / 4
    ("polite", "We are very sorry.", 3.25),  # one phrase, 3; 1; 10 / 3 = 3.33
    ("polite", "Please, please, please.", 3.0),  # 2.625; as "happy happy happy"
    ("polite", "We cannot help you.", -1.5),  # "cannot help" is a phrase, -1; -1/3; -1.43
    ("polite", "The parcel is on its way.", 0.0),
    ("concise", "We will call.", 0.0),  # three words are too few
    ("concise", "We will call you.", 10.0),
    ("concise", "We will call you back on Friday morning.", 9.0),  # 8 words: 10 - 4/4
    ("concise", "word " * 42, 0.5),  # 10 - 38/4
    ("concise", "word " * 45, 0.25),  # 10 - 41/4 is below the floor
    ("dialogue", "He said nothing at all.", 0.25),  # v = 1: 1/3
    ("dialogue", '"Come in," said the bear.', 3.5),  # 5 x 2/9 + 4 x 1/2 + 1/3 = 1.11 + 2 + 0.33 = 3.44
    ("dialogue", "“Come in,” said the bear.", 3.5),
    ("dialogue", '"Come in, said the bear.', 0.25),  # an open quote is no line
    ("dialogue", '"Hello!" "Hello!"', 2.5),  # one line, one word: 5/9 + 2 = 2.56
    # quoted: who is it me the fox, 6 of 12 words; two lines; asked, said: 2.5 + 2.67 + 0.67 = 5.83
    ("dialogue", '"Who is it?" she asked. "It is me, the fox," he said.', 5.75),
    ("concrete", "Two red apples.", 4.5),  # 2 + 2 + 1 = 5; 5/3; 16.67 / 3.67 = 4.55
    ("concrete", "Some stuff, or something.", -5.0),  # -2 - 2 - 2 = -6; -2; -20 / 4
    ("concrete", "It cost 14 euros.", 4.0),  # 2 + 2 = 4; 4/3; 4
    ("concrete", "1 2 3", 3.0),  # 2 + 0.5 + 0.125 = 2.625; 3.04
    ("concrete", "The apples and the apple.", 1.75),  # 1 + 1/4; 0.417; 4.17 / 2.42 = 1.72
    ("concrete", "No one came.", 0.0),
    ("vivid", "The flames roared.", 5.0),  # 1 + 2 = 3; 1; 10 / 2
    ("vivid", "It was very nice.", -4.0),  # -1 - 1 = -2; -0.667; -6.67 / 1.67
    ("vivid", "Snow fell like a feather.", 6.25),  # 1 + 1 + 2 + 1 = 5; 1.667; 16.67 / 2.67
    ("vivid", "red red red", 3.0),  # 1.3125; 0.4375; 4.375 / 1.4375 = 3.04
    # 15 letters in 7 different words, 3.5 words a sentence: (2.107 + 0.65) x 7/9 = 2.144; 21.44 / 4.144 = 5.17
    ("plain", "I see a cat. It is fat.", 5.25),
    # nine different words of three letters, 5 words a sentence: 1.25 + 0.5 = 1.75; 17.5 / 3.75 = 4.67
    ("plain", "The big red dog ran out. The sun was hot.", 4.75),
    # 13 and 11 letters: (4.25 - 12 + 0.8) x 2/9 = -1.544; -15.44 / 3.544 = -4.36
    ("plain", "Unnecessarily complicated.", -4.25),
    # a, cat and hedgehog: 12 letters in 3 different words, 6 words: (0.25 + 0.4) x 3/9 = 0.217; 2.167 / 2.217 = 0.98
    ("plain", "A cat, a cat, a hedgehog.", 1.0),
    ("plain", "I a I a I a I a.", 2.75),  # (3.25 + 0.2) x 2/9 = 0.767; 7.67 / 2.767 = 2.77
]

# Better text first; written before the judges had seen them.
BETTER = {
    "cheerful": [
        ("They sang all the way home and ate honey cake.", "They argued all the way and lost the cake."),
        ("The bird was free at last, and the children cheered.", "The bird was dead, and the children cried."),
        ("She was very happy with the gift.", "She was happy with the gift."),
        ("She was happy with the gift.", "She was not happy with the gift."),
        ("The boy was not afraid.", "The boy was afraid."),
        ("I love this kettle, it works perfectly.", "I hate this kettle, it never works and smells awful."),
        ("We are glad that your order arrived safely.", "Your order is lost and there is a problem."),
    ],
    "gloomy": [
        ("No letter ever came, and the house stood empty.", "A letter came, and the house was full of friends."),
        ("The crows circled above the ruins in the fog.", "The swallows played above the garden in the sun."),
        ("He died in the winter, and she mourned him for years.", "He left in the winter and came back in spring."),
        ("The rain would not stop, and the candle went out.", "The rain stopped, and a rainbow came out."),
        ("Nobody came to her birthday.", "Everybody came to her birthday."),
        ("I was disappointed, the roses withered in two days.", "I was delighted, the roses were fresh and bright."),
    ],
    "polite": [
        ("Could you please send us a photo? Thank you!", "Send us a photo."),
        ("We apologise for the delay and wish you a nice day.", "Delays happen. Deal with it."),
        ("Of course, we will gladly change the address.", "You should have checked the address."),
        ("I am so sorry about the cup.", "The cup was your fault, stupid."),
        ("You are welcome, and do not hesitate to ask.", "Stop asking."),
        ("Dear Mr Reed, thank you for your letter.", "Mr Reed, we got your letter."),
        ("The shop opens at nine.", "The shop opens at nine, as I said, you fool."),
    ],
    "concise": [
        ("It ships on Monday.", "It ships on Monday, or at the latest on Tuesday."),
        ("Try a new cable.", "Yes."),
        ("We will look into it.", "We will look into it as soon as we have the time to do so."),
        ("Press the red key for five seconds.", "Press the red key and hold it down for about five seconds."),
        ("Your refund is on its way.", "Refund sent."),
        ("one two three four five", "one two three four five six"),
    ],
    "dialogue": [
        ('"I will go," she said. "Wait for me!" he called.', '"I will go," she said, and he called her back.'),
        ('"I will go with you to the sea," she said.', '"Yes," she said, and went with him to the sea.'),
        ("She told him that she would go with him.", "She packed her bag and went with him."),
        ('The cat asked, "Where is my hat?"', "The cat looked for its hat."),
        ("“Where is my hat?” asked the cat.", "The cat asked for its hat."),
        ('"Up!" said one. "Down!" said two. "Stay!" said three.', '"Up!" said one. "Up!" said two. "Up!" said three.'),
    ],
    "vivid": [
        ("Thunder rumbled and icy drops stung her cheeks.", "There was bad weather and she did not like it."),
        ("The pie was warm, sticky and smelled of cinnamon.", "The pie was good and I think it was very nice."),
        ("He crept past the snoring giant.", "He went past the man."),
        ("The crisp leaves crunched under his boots.", "He went for a walk in the usual way."),
        ("A tiny spark glowed in the dark.", "There was something in the room."),
        ("The fan rattles and hums like a tractor.", "The fan is a standard product of average quality."),
    ],
    "concrete": [
        ("She packed three eggs, a knife and a green apple.", "She packed some things and other stuff."),
        ("We will refund 20 dollars on Tuesday.", "We will refund something at some point."),
        ("The chair is made of oak and has a leather seat.", "The chair is sort of nice."),
        ("At noon the baker opened his blue door.", "One day someone opened something."),
        ("It broke after four weeks.", "It broke after a while, maybe later than usual."),
        ("The soup had carrots, beans and too much salt.", "The food had lots of various things in it."),
    ],
    "plain": [
        ("It is a good pan. I use it a lot.", "This exceptionally versatile pan accompanies numerous preparations."),
        ("The bag is big and it has a zip.", "The spacious backpack additionally features several compartments."),
        ("We had fun. The kids loved it.", "Everybody experienced considerable entertainment throughout."),
        ("It does not work. I sent it back.", "Following repeated malfunctions, the appliance was returned."),
        (
            "The tea was hot. The cake was dry. We did not stay long.",
            "The tea was hot and the cake was dry so we did not stay long there at all that day.",
        ),
        ("He sat down by the fire and ate his soup.", "Subsequently, he positioned himself comfortably nearby."),
    ],
}

# Texts as a small language model might write them: t are tales, s support replies, r reviews.
EXAMPLES = {
    "t1": "and the little mouse found a warm bed of hay. She curled up, smiled, and dreamed of cheese all night.",
    "t2": "but the boat had sunk in the storm, and nobody ever came back. The old man waited alone in the rain.",
    "t3": '"Who is there?" asked the bear. "Only me," said the rabbit. "Then come in and have some soup!"',
    "t4": "The fox laughed and danced with his friends until the moon was high. What a wonderful party it was!",
    "t5": "Then the wind howled through the broken window, and a cold shadow crept over the floor. Anna shivered.",
    "t6": "He went home and had something to eat. Then he did some things and it was good.",
    "t7": "The dog was not happy. He had lost his ball and he did not want to play.",
    "t8": '"I am sorry," whispered Tom, and he gave the broken drum back to his sister. She hugged him.',
    "t9": "At the bottom of the well there was a golden key, a green frog, and three silver spoons.",
    "t10": "She wept for her mother, whose grave lay under the dark oak. The crow was her only friend.",
    "t11": "The dragon roared, and red flames burst from the cave like a river. Sparks hissed on the wet stones.",
    "t12": "One day the girl thought about it and decided that it was fine. So she stayed there for a while.",
    "t13": "The king said that he was hungry. The cook told him to wait, and they argued until supper.",
    "t14": "and they all laughed.",
    "t15": '"Help!" cried the hen. "Hold on!" shouted the goat. "I have a rope!" The hen held on, and up she came.',
    "t16": "The baker gave every child a sweet bun and a bright red balloon, and the whole street sang with joy.",
    "s1": "Thank you so much for writing to us. We are very sorry about the broken lamp. We will send a new one today.",
    "s2": "Read the manual. It is your fault that it broke, and we do not care. Stop writing to us.",
    "s3": "Your parcel is late. It should be there on Friday.",
    "s4": "Hello! Of course, we would be happy to help. Could you please tell us your order number? Kind regards, Al.",
    "s5": "No refunds. That is our policy.",
    "s6": "Please try the other cable first. If it does not charge, let us know and we will send you a new one.",
    "s7": "You must fill in the form. We cannot help you without it, as I said.",
    "s8": "We have checked your order and the payment went through on 3 May, so the parcel should leave our warehouse "
    "tomorrow and reach you within five working days, unless there is a delay at the post office.",
    "s9": "Sorry about that. We have refunded 12 euros.",
    "s10": "That is a stupid question. Obviously the kettle needs water. What do you want us to do, idiot?",
    "s11": "Good morning, and thank you for your patience. We apologise for the delay and have added a small gift.",
    "s12": "The shoes can be sent back within thirty days. Use the label in the box.",
    "s13": "We are looking into it.",
    "r1": "I bought this blue wool scarf on Monday. It is 2 metres long, warm, and it has four buttons. I love it.",
    "r2": "It is sort of okay, I guess. Some things are nice and some stuff is not. Whatever.",
    "r3": "Terrible product. It broke after two days and the shop was rude. I hate it and want my money back.",
    "r4": "The soup was hot and salty, the bread was fresh, and the waiter smiled. We paid 14 euros for two.",
    "r5": "Notwithstanding considerable initial enthusiasm, the accompanying documentation remains fundamentally "
    "incomprehensible, disappointing experienced professionals everywhere.",
    "r6": "It is a good mug. It keeps my tea hot. I use it each day.",
    "r7": "Great value! Fast, quiet, and easy to clean. My family loves it and I would recommend it to all my friends.",
    "r8": "The lamp flickers, hums and smells of burnt rubber. The switch is sticky and the glass has a crack.",
    "r9": "I was really hoping for something better. The overall experience was somewhat interesting, but in general "
    "it was a bit disappointing and I probably would not purchase it again.",
    "r10": "Not bad at all. The steel pan heats up in three minutes and my eggs slide right off.",
    "r11": "The film was long and sad, and the ending left me in tears. I walked home in the rain.",
    "r12": "The instructions were unnecessarily complicated, although the manufacturer eventually "
    "provided satisfactory assistance.",
}
# A ranking by a person, best group first: every text of a group should beat every text of the groups after it.
RANKING = {
    "cheerful": ["t4 t16 r7", "t1 r4 r6", "t6 t9 t12", "t7 r8", "t2 t10 r3"],
    "gloomy": ["t2 t10", "t5 r11", "t7", "t9 t12", "t4 t16 r7"],
    "dialogue": ["t3 t15", "t8", "t13", "t1 t2 t9"],
    "vivid": ["t11", "t5 r8", "t16", "t9 t3", "t6 t12 r9"],
    "polite": ["s1 s4 s11", "s6 s9", "s3 s12 s13 s8", "s7 s5", "s2 s10"],
    "concise": ["s13", "s5", "s9", "s3", "s12 s7", "s6 s1", "s8"],
    "concrete": ["r1", "t9 r10", "r4 r8", "r6 r3", "r7", "r2 r9"],
    "plain": ["r6", "t7 t6", "r10 r3 r4", "r9", "r12", "r5"],
}


def made_up_texts(prompt_set: str, count: int = 300) -> list[str]:
    """Different texts of two or three random sentences from the examples of one genre, 7 to 45 words long."""
    rng = random.Random(1)
    genre = [text for key, text in EXAMPLES.items() if key[0] == prompt_set[0]]
    sentences = [sentence for text in genre for sentence in re.findall(r'[^.!?]+[.!?]+"?\s*', text + " ")]
    texts = ["".join(rng.sample(sentences, rng.choice((2, 3)))) for _ in range(count)]
    return [text for text in dict.fromkeys(texts) if 7 <= len(text.split()) <= 45]


def word_list(name: str) -> list[tuple[str, float]]:
    """The entries of a word list as written, duplicates included."""
    lines = (PACKAGE / "lexicons" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(":", 1) for line in lines if line and not line.startswith("#")]
    return [(entry.strip(), float(weight)) for weight, entries in pairs for entry in entries.split(",")]


@pytest.mark.parametrize(("name", "text", "expected"), BY_HAND)
def test_scores_agree_with_pencil_and_paper(name: str, text: str, expected: float) -> None:
    assert JUDGES[name].score("", text) == expected


@pytest.mark.parametrize(
    ("name", "better", "worse"), [(name, *pair) for name, pairs in BETTER.items() for pair in pairs]
)
def test_the_better_text_wins_on_either_side(name: str, better: str, worse: str) -> None:
    assert prefer(JUDGES[name], "", better, worse) is Choice.FIRST
    assert prefer(JUDGES[name], "", worse, better) is Choice.SECOND


@pytest.mark.parametrize("name", RANKING)
def test_the_ranking_of_the_examples_agrees_with_a_persons(name: str) -> None:
    score = {key: JUDGES[name].score("", text) for key, text in EXAMPLES.items()}
    groups = [group.split() for group in RANKING[name]]
    pairs = [pair for upper, lower in combinations(groups, 2) for pair in product(upper, lower)]
    wrong = [(better, worse) for better, worse in pairs if score[better] <= score[worse]]
    assert len(wrong) <= 0.07 * len(pairs), wrong
    assert all(score[worse] - score[better] <= 1 for better, worse in wrong)


def test_every_judge_has_orderings_a_ranking_and_a_description() -> None:
    assert set(BETTER) == set(RANKING) == set(STORY_JUDGES) == {name for name, _, _ in BY_HAND}
    assert all(len(pairs) >= 6 for pairs in BETTER.values())
    for name, judge in JUDGES.items():
        assert judge.name == name
        assert judge.prompt_set in PROMPT_SETS
        assert re.fullmatch(r"[A-Z][^.]+\.", judge.description)


@pytest.mark.parametrize("judge", STORY_JUDGES.values(), ids=lambda judge: judge.name)
def test_scores_are_deterministic_in_range_and_rounded(judge: Judge) -> None:
    for text in made_up_texts(judge.prompt_set):
        score = judge.score("", text)
        assert score == judge.score("", text)
        assert -10 <= score <= 10
        assert (score / SCORE_STEP).is_integer()


@pytest.mark.parametrize("judge", STORY_JUDGES.values(), ids=lambda judge: judge.name)
def test_scores_are_graded_and_have_the_stated_sd(judge: Judge) -> None:
    scores = [judge.score("", text) for text in made_up_texts(judge.prompt_set)]
    assert len(set(scores)) >= 20
    assert pstdev(scores) == pytest.approx(judge.score_sd, rel=0.2)
    ties = sum(one == other for one, other in combinations(scores, 2)) / (len(scores) * (len(scores) - 1) / 2)
    # Two texts in which nobody speaks are a tie for a judge of dialogue.
    assert 0.02 <= ties <= (0.25 if judge.name == "dialogue" else 0.08)


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize("text", ["", "   \n", "...", "\x00", "___", '""', "🙂🙂🙂"])
def test_an_empty_text_scores_zero(name: str, text: str) -> None:
    assert JUDGES[name].score("", text) == 0.0
    assert str(JUDGES[name].score("", text)) == "0.0"


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize(
    "text",
    [
        "happy not please " * 5_000,
        "x" * 50_000,
        '"' * 20_001,
        "“" * 20_000,
        "'a" * 10_000,
        "!" * 10_000,
        "12 " * 5_000,
        "naïve Ünïcödé 東京 \u202eabc\u202c \ud800 é ﷽ 𝔥𝔞𝔭𝔭𝔶 ²",
        "<script>alert(1)</script> {0} %s \\",
    ],
    ids=range(9),
)
def test_hostile_texts_get_an_ordinary_score(name: str, text: str) -> None:
    assert -10 <= JUDGES[name].score("", text) <= 10


@pytest.mark.parametrize("name", ["cheerful", "gloomy", "dialogue", "vivid", "polite", "concrete"])
def test_mere_length_counts_for_nothing(name: str) -> None:
    assert {JUDGES[name].score("", "the one who is with them " * n) for n in range(10)} == {0.0}


def test_plain_is_blind_to_length() -> None:
    ten = "abc def ghi jkl mno pqr stu vwx yza bcd."
    twenty = ten + " cde fgh ijk lmn opq rst uvw xyz zab acd."
    assert JUDGES["plain"].score("", ten) == JUDGES["plain"].score("", twenty)


@pytest.mark.parametrize(
    ("name", "many", "few"),
    [
        ("cheerful", "happy " * 20, "The happy girl smiled, and they sang a merry song."),
        ("gloomy", "death " * 20, "In the rain he wept alone beside her grave."),
        ("polite", "please " * 20, "Thank you for your letter, we are very sorry and would be glad to help."),
        ("concrete", "red " * 20, "On Monday she bought two red apples, a knife and a tin cup."),
        ("vivid", "roar " * 20, "The icy wind howled and sparks crackled in the dark."),
        ("dialogue", '"Hello," ' * 20, '"Hello," said the cat. "Where have you been?"'),
        ("plain", "a b " * 20, "The cat sat by me. It was old and fat and so am I."),
    ],
)
def test_repetition_does_not_win(name: str, many: str, few: str) -> None:
    assert prefer(JUDGES[name], "", few, many) is Choice.FIRST


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("happy", 2.0),
        ("not happy", -1.0),
        ("isn't happy", -1.0),
        ("isn’t happy", -1.0),
        ("never a happy", -1.0),
        ("not at all happy", -1.0),
        ("not very happy", -1.5),
        ("very happy", 3.0),
        ("slightly happy", 1.0),
        ("not only happy", 2.0),
        ("no, happy", 2.0),  # another clause
        ("not one of the happy", 2.0),  # too far away
        ("kind of", 0.0),
    ],
)
def test_negation_and_intensity(text: str, expected: float) -> None:
    assert builtin._weighted_total(text, "valence") == expected


@pytest.mark.parametrize(
    ("choice_by_letter", "entry"),
    [
        ("roars", "roar"),
        ("roaring", "roar"),
        ("blazed", "blaze"),
        ("flapping", "flap"),
        ("crunches", "crunch"),
        ("scurried", "scurry"),
        ("rustier", "rusty"),
        ("brightest", "bright"),
        ("noisiness", ""),
        ("darkness", "dark"),
        ("darkly", "dark"),
        ("dragon's", ""),
        ("wind's", "wind"),
        ("caring", ""),
    ],
)
def test_inflections_find_their_entry(choice_by_letter: str, entry: str) -> None:
    result = [entry for _, entry in builtin._find_entries([choice_by_letter], builtin._load_lexicon("vivid"))]
    assert result == ([entry] if entry else [])


@pytest.mark.parametrize(
    "name", ["valence", "gloom", "polite", "concrete", "vivid", "speech", "modifiers", "function_words"]
)
def test_the_lexicons_are_well_formed(name: str) -> None:
    entries = word_list(name)
    match = [entry for entry, _ in entries]
    assert sorted(match) == sorted(set(match))
    assert all(re.fullmatch(r"[a-z']+( [a-z']+)*", choice_by_letter) for choice_by_letter in match)
    assert all(-3 <= weight <= 3 for _, weight in entries)


def test_the_valence_list_is_large_on_both_sides() -> None:
    weights = [weight for _, weight in word_list("valence")]
    assert sum(weight > 0 for weight in weights) >= 350
    assert sum(weight < 0 for weight in weights) >= 350
    assert len(word_list("valence")) >= 700


def flat(spread: float = 1.0, grain: float = 0.0) -> Judge:
    """A judge that reads the score off the text."""
    return Judge("flat", "Reads a number.", "tales", lambda _, text: float(text), spread, grain)


def test_equal_scores_tie_and_the_least_difference_does_not() -> None:
    assert prefer(flat(), "", "1", "1.0") is Choice.TIE
    assert prefer(flat(), "", "1", "1.0000000001") is Choice.SECOND


def test_zero_noise_draws_nothing() -> None:
    rng = random.Random(3)
    before = rng.getstate()
    assert prefer(flat(), "", "2", "1", rng=rng) is Choice.FIRST
    assert rng.getstate() == before


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_noise_is_in_units_of_the_judges_score_sd(spread: float) -> None:
    # The scores differ by one spread; each gets noise of one spread: P(first wins) = Phi(1 / sqrt 2) = 0.7602.
    rng = random.Random(7)
    wins = sum(prefer(flat(spread), "", str(spread), "0", noise=1.0, rng=rng) is Choice.FIRST for _ in range(4000))
    assert wins / 4000 == pytest.approx(0.7602, abs=0.027)  # four standard errors


def test_noise_favours_neither_side() -> None:
    rng = random.Random(8)
    choices = [prefer(flat(), "", "1", "1", noise=0.5, rng=rng) for _ in range(4000)]
    assert choices.count(Choice.TIE) == 0
    assert choices.count(Choice.FIRST) / 4000 == pytest.approx(0.5, abs=0.032)


def test_a_little_noise_leaves_ties() -> None:
    rng = random.Random(9)
    assert {prefer(flat(grain=0.25), "", "1", "1", noise=0.01, rng=rng) for _ in range(200)} == {Choice.TIE}
    assert len({prefer(flat(grain=0.25), "", "1", "1", noise=1.0, rng=rng) for _ in range(200)}) == 3


def test_noise_repeats_with_the_seed() -> None:
    def answers() -> list[Choice]:
        rng = random.Random(5)
        return [prefer(flat(), "", "1", "1.2", noise=1.0, rng=rng) for _ in range(50)]

    assert answers() == answers()


@pytest.mark.parametrize("noise", [-0.1, float("nan"), float("inf")])
def test_an_invalid_noise_is_refused(noise: float) -> None:
    with pytest.raises(ConfigError, match="noise"):
        prefer(flat(), "", "1", "2", noise=noise, rng=random.Random(0))


def test_noise_needs_a_generator() -> None:
    with pytest.raises(ConfigError, match="random generator"):
        prefer(flat(), "", "1", "2", noise=0.1)


@pytest.mark.parametrize("name", JUDGES)
def test_a_judge_is_loaded_by_its_name(name: str) -> None:
    assert load_judge(name) is JUDGES[name]


@pytest.mark.parametrize("spec", ["chearful", "", ":", "x.py", "x.py:", ":f", "x.py:not a name"])
def test_an_unknown_name_lists_the_known_ones(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"cheerful, gloomy.*FILE\.py:NAME") as caught:
        load_judge(spec)
    assert repr(spec) in str(caught.value)


def test_the_judges_and_the_corpus_do_not_import_each_other() -> None:
    assert not imports_module(
        imported_names((PACKAGE / "builtin.py").read_text(encoding="utf-8"), "rlhf_lab"), "rlhf_lab.embedded_model"
    )
    corpus = set((PACKAGE.parent / "embedded_model").rglob("*.py"))
    corpus -= {PACKAGE.parent / "embedded_model" / "model_card.py"}  # it generates no texts, it measures the model
    assert corpus
    for path in corpus:
        result = imported_names(path.read_text(encoding="utf-8"), package_of(path, PACKAGE.parents[1]))
        assert not imports_module(result, "rlhf_lab.judges"), path.name
