"""Names that people give: one spelling for each, and whether two of them look alike.

Unicode has many ways to write what looks the same: composed and decomposed letters, characters that are not drawn, letters of
other alphabets. Without care somebody could join beside "Ann" as another "Ann".
"""

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
    ("‐‑‒–—―−⁃", "--------"),
    ("’‘ʼʻʹ′`´", "''''''''"),
    ("꞉∶ː։׃", ":::::"),
)
_TO_LATIN = str.maketrans("".join(a for a, _ in _LATIN_LOOKALIKES), "".join(b for _, b in _LATIN_LOOKALIKES))
#: Look alike in most fonts although they are Latin letters and digits.
_SAME_SHAPE = str.maketrans("Il10", "|||O")
#: Scripts that are written together, also with Latin letters, in one word.
_EAST_ASIAN = {"CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO"}


def normalize_name(name: str) -> str:
    """A name as it is kept: in Unicode's form NFKC, without characters that are not drawn, with single spaces."""
    visible = _INVISIBLE.sub("", unicodedata.normalize("NFKC", name))
    return " ".join(unicodedata.normalize("NFKC", visible).split())


def has_invisible(name: str) -> bool:
    """Whether the name holds a character that is not drawn."""
    return _INVISIBLE.search(name) is not None


def latin_spelling(name: str) -> str:
    """The name with Latin letters in the place of those that look like them."""
    return normalize_name(unicodedata.normalize("NFKD", name).translate(_TO_LATIN))


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
