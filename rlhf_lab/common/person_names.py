"""Names that people give: one spelling for each, and whether two of them look alike.

Unicode has many ways to write what looks the same: composed and decomposed letters, characters that are not drawn, letters of
other alphabets. Otherwise somebody could join as a second "Ann".
"""

import functools
import re
import unicodedata

#: Characters that are not drawn although Python counts them as printable: those of Unicode's Default_Ignorable_Code_Point
#: (joiners, fillers, variation selectors), the empty Braille pattern, the null notehead.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
#: Letters that look like Latin ones, a part of Unicode's confusables.txt (UTS 39); each line maps the first text to the second.
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
#: Look alike in most fonts although they are Latin letters and digits.
_SAME_SHAPE = str.maketrans("Il10", "|||O")
#: Scripts that are written together, also with Latin letters, in one word.
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
    """A name as it is kept: in Unicode's form NFKC, without characters that are not drawn, with single spaces. It begins with no
    mark that belongs to a letter before it."""
    visible = _INVISIBLE.sub("", unicodedata.normalize("NFKC", name))
    normalized = " ".join(unicodedata.normalize("NFKC", visible).split())
    while normalized and unicodedata.category(normalized[0]).startswith("M"):
        normalized = normalized[1:].lstrip()
    return normalized


def has_invisible(name: str) -> bool:
    """Whether the name holds a character that is not drawn."""
    return _INVISIBLE.search(name) is not None


def latin_spelling(name: str) -> str:
    """The name with Latin letters in the place of those that look like them."""
    return normalize_name(unicodedata.normalize("NFKD", name).translate(_to_latin()))


def lookalike_keys(name: str) -> frozenset[str]:
    """Two names look alike when they have a key in common: they differ in case or in letters of one shape alone."""
    latin = latin_spelling(name)
    same_shape = latin.translate(_SAME_SHAPE).casefold().replace("rn", "m").replace("vv", "w")
    return frozenset((f"case {latin.casefold()}", f"shape {same_shape}"))


def mixed_scripts(name: str) -> list[str]:
    """Scripts of the first word whose letters belong to several, such as ["CYRILLIC", "LATIN"]; empty where no word does."""
    for word in name.split():
        letters = (character for character in word if unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lo"))
        scripts = {unicodedata.name(letter, "?").partition(" ")[0] for letter in letters} - _EAST_ASIAN
        if len(scripts) > 1:
            return sorted(scripts)
    return []
