"""Normalises the names that people enter, and detects names that look alike, so that no one can join as a second "Ann".

In Unicode, the same appearance can be written in many ways: composed and decomposed letters, invisible characters, letters of
other alphabets.
"""

import functools
import re
import unicodedata

#: Invisible characters that Python considers printable: those of Unicode's Default_Ignorable_Code_Point (joiners, fillers,
#: variation selectors), the empty Braille pattern, the null notehead.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
#: Letters that look like Latin ones, a part of Unicode's confusables.txt (UTS 39). Each line maps letters of the first text to
#: those of the second.
_LATIN_LOOKALIKES = (
    ("АВЕЅІЈКМНОРСТУХѴԚԜӀҮЬҺԌԐЗ", "ABESIJKMHOPCTYXVQWIYbhGE3"),  # Cyrillic
    ("авсԁеһіјкмноӏпрԛгѕтуүхѵԝшьԍӡ", "abcdehijkmholnpqrstyyxvwwbg3"),
    ("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧϹͿ", "ABEZHIKMNOPTYXCJ"),  # Greek
    ("αβγεηικνορστυχωϲϳ", "abyenikvopotuxwcj"),
    ("ԱՍՏՕԼՈՀ", "UUSOLnz"),  # Armenian
    ("աոսօհցզքյլ", "wnuohgqpjl"),
    ("ᎪᏴᏟᎠᎬᏀᎻᎥᎫᏦᏞᎷᏢᎡᏚᎢᏙᎳᎽᏃ", "ABCDEGHiJKLMPRSTVWYZ"),  # Cherokee
    ("ꓮꓐꓚꓓꓰꓝꓖꓧꓲꓙꓗꓡꓟꓠꓳꓑꓣꓢꓔꓴꓦꓪꓫꓬꓜ", "ABCDEFGHIJKLMNOPRSTUVWXYZ"),  # Lisu
    ("ⲀⲂⲈⲌⲎⲒⲔⲘⲚⲞⲢⲤⲦⲨⲬ", "ABEZHIKMNOPCTYX"),  # Coptic
    ("ⲁⲃⲉⲏⲓⲕⲙⲛⲟⲣⲥⲧⲩⲭ", "abehikmnopctyx"),
    ("ɑɡıɩɪȷʟɴʀʙɢʜʏᴀᴄᴅᴇᴊᴋᴍᴏᴘᴛᴜᴠᴡᴢꜰꜱƖǀ", "agiiijlnrbghyacdejkmoptuvwzfsll"),  # Latin: variants and small capitals
    ("Ɑ׀∣❘│।", "Alllll"),
    ("−⁃˗➖", "----"),  # and all that Unicode counts as dashes
    ("’‘ʼʻʹ′`´", "''''''''"),
    ("꞉∶ː։׃", ":::::"),
)
#: Variants of a letter: "LATIN SMALL LETTER BLACKLETTER E", "LATIN LETTER SMALL CAPITAL N". ß counts as ss (`str.casefold`).
_LATIN_VARIANT = re.compile(r"LATIN (?:SMALL |CAPITAL )?LETTER (?!SHARP )(?:[A-Z]+ )+([A-Z])")
#: Latin letters and digits that look alike in most fonts.
_SAME_SHAPE = str.maketrans("Il10", "|||O")
#: Scripts that may occur together in one word, also with Latin letters.
_EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"}


@functools.cache
def _to_latin() -> dict[int, str]:
    """The table for `str.translate`."""
    table: dict[int, str] = {}
    for character in map(chr, range(0x80, 0x10000)):
        if unicodedata.category(character) == "Pd":
            table[ord(character)] = "-"
        elif variant := _LATIN_VARIANT.fullmatch(name := unicodedata.name(character, "")):
            table[ord(character)] = variant[1].lower() if " SMALL LETTER " in name else variant[1]
    for originals, replacements in _LATIN_LOOKALIKES:
        table |= dict(zip(map(ord, originals), replacements, strict=True))
    return table


def normalize_name(name: str) -> str:
    """A name in the form that is stored: Unicode's form NFKC, without invisible characters, with single spaces.

    Combining marks at its beginning, which would belong to a letter before it, are removed.
    """
    visible = _INVISIBLE.sub("", unicodedata.normalize("NFKC", name))
    normalized = " ".join(unicodedata.normalize("NFKC", visible).split())
    while normalized and unicodedata.category(normalized[0]).startswith("M"):
        normalized = normalized[1:].lstrip()
    return normalized


def has_invisible(name: str) -> bool:
    """Whether the name contains an invisible character."""
    return _INVISIBLE.search(name) is not None


def is_blank(text: str) -> bool:
    """Whether nothing of a text can be seen: it has no letter, digit, punctuation mark or symbol."""
    return not any(unicodedata.category(character)[0] in "LNPS" for character in normalize_name(text))


def latin_spelling(name: str) -> str:
    """The name with look-alike letters replaced by Latin ones."""
    return normalize_name(unicodedata.normalize("NFKD", name).translate(_to_latin()))


@functools.lru_cache(maxsize=2**14)  # more than a lab has people; a new name is compared with all others
def lookalike_keys(name: str) -> frozenset[str]:
    """Keys of a name. Two names look alike if they share a key: they differ only in case, or only in letters of equal shape."""
    latin = latin_spelling(name)
    same_shape = latin.translate(_SAME_SHAPE).casefold().replace("rn", "m").replace("vv", "w")
    return frozenset((f"case {latin.casefold()}", f"shape {same_shape}"))


def mixed_scripts(name: str) -> list[str]:
    """The scripts of the first word that mixes several, such as ["CYRILLIC", "LATIN"]; empty if no word does."""
    for word in name.split():
        letters = (character for character in word if unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lo"))
        scripts = {unicodedata.name(letter, "?").partition(" ")[0] for letter in letters} - _EAST_ASIAN
        if len(scripts) > 1:
            return sorted(scripts)
    return []
