"""Which labels leave, and in which form."""

from dataclasses import dataclass

from rlhf_lab.errors import ConfigError
from rlhf_lab.kinds import Source

TIES = ("keep", "drop")
#: votes: a row a vote with all that is known; explicit, implicit: exactly what TRL documents, ties left out.
LAYOUTS = ("votes", "explicit", "implicit")
FORMATS = ("jsonl", "jsonl.gz", "json", "csv", "parquet")


@dataclass(frozen=True)
class LabelExport:
    """source: people's, simulated, or (None) both, each row saying whose it is. annotators: only these people's (empty: all).

    agreement: keep a vote only where at least this share of the pair's votes (of those chosen here) say the same.
    names: False: people are visitors without a name, each the same in every export of a lab; judges and notes stay.
    messages: texts as chats, TRL's conversational format. token_ids: also the sampled ids, and whose weights they belong to.
    """

    source: Source | None = Source.HUMAN
    annotators: tuple[str, ...] = ()
    ties: str = "keep"
    agreement: float = 0.0
    layout: str = "votes"
    messages: bool = False
    token_ids: bool = False
    format: str = "jsonl"
    names: bool = True

    def __post_init__(self) -> None:
        """Raises ConfigError for an unknown word or a share outside 0 … 1."""
        for name, value, known in (
            ("ties", self.ties, TIES), ("layout", self.layout, LAYOUTS), ("format", self.format, FORMATS),
        ):  # fmt: skip
            if value not in known:
                raise ConfigError(f'{name} = "{value}" is unknown; choose one of {", ".join(known)}.')
        if not 0.0 <= self.agreement <= 1.0:
            raise ConfigError(f"agreement = {self.agreement} is no share; give a number from 0 to 1.")
        if self.token_ids and self.layout != "votes":
            raise ConfigError("Token ids go with the layout votes only; TRL makes its own.")

    @property
    def drops_ties(self) -> bool:
        """TRL's columns cannot say that nobody won."""
        return self.ties == "drop" or self.layout != "votes"

    def to_dict(self) -> dict[str, object]:
        """For the provenance file. annotators: how many, where none is named."""
        return {
            "source": self.source.value if self.source else "all", "names": self.names,
            "annotators": list(self.annotators) if self.names else len(self.annotators),
            "ties": "drop" if self.drops_ties else "keep", "agreement": self.agreement, "layout": self.layout,
            "messages": self.messages, "token_ids": self.token_ids, "format": self.format,
        }  # fmt: skip
