"""The variants of the method: Bitune, its baselines and its ablations (paper, Tables 1, 5 and 8).

An ablation is a point in the space of four choices, not a branch in the code: no other file asks for a variant's name.
What the weights are (LoRA, DoRA, IA3, full copies, none) is the adapter's business.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, get_args

Pattern = Literal["causal", "bidirectional", "anti_causal"]
"""Which keys a query of a reading may attend to: those before it, all, or those after it; itself always."""


@dataclass(frozen=True)
class Method:
    """How the prompt is read before its answer is modelled.

    Args:
        second_pass: attention pattern of the second reading of the prompt; None for one causal reading.
        separate_weights: whether the second reading has weights of its own (the bidirectional weights).
        mixing: whether the answer attends to the mix of both readings. Without it the answer attends to the only reading
            there is: the second one, or the causal one where `second_pass` is None.
        prompt_copies: how often the prompt is written, one after the other, before it is read.

    Raises:
        ValueError: if the four choices contradict each other.
    """

    second_pass: Pattern | None = "bidirectional"
    separate_weights: bool = True
    mixing: bool = True
    prompt_copies: int = 1

    def __post_init__(self) -> None:
        if self.second_pass is not None and self.second_pass not in get_args(Pattern):
            raise ValueError(f"second_pass is one of {', '.join(get_args(Pattern))} or none, not {self.second_pass!r}.")
        for name in ("separate_weights", "mixing"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is true or false, not {getattr(self, name)!r}.")
        if self.second_pass is None and (self.mixing or self.separate_weights):
            raise ValueError(
                "mixing and separate_weights need a second reading of the prompt: set second_pass, or set both to false."
            )
        if not isinstance(self.prompt_copies, int) or self.prompt_copies < 1:
            raise ValueError(f"prompt_copies is a whole number of at least 1, not {self.prompt_copies!r}.")

    @property
    def weight_sets(self) -> tuple[str, ...]:
        """Names of the sets of weights, as in checkpoints."""
        return ("causal", "bidirectional") if self.separate_weights else ("causal",)


VARIANTS: dict[str, Method] = {
    "plain": Method(second_pass=None, separate_weights=False, mixing=False),
    "bitune": Method(),
    "naive_bidir": Method(separate_weights=False, mixing=False),
    "no_mixing": Method(mixing=False),
    "only_causal": Method(second_pass="causal"),
    "shared_weights": Method(separate_weights=False),
    "anti_causal": Method(second_pass="anti_causal"),
    "echo": Method(second_pass=None, separate_weights=False, mixing=False, prompt_copies=2),
}
"""The paper's rows: LoRA, Bitune, Naive Bidir., No Mixing, Only Causal, Shared Weights (Table 5), Anti-causal (Table 8);
`echo` is the baseline of related work (Springer et al., 2024) that writes the prompt twice."""


def resolve(method: "str | dict | Method") -> Method:
    """A `Method` from a variant's name, from its four fields, or from itself.

    Raises:
        ValueError: if the name or a field is unknown, or it is none of these.
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str):
        if method not in VARIANTS:
            raise ValueError(f"There is no variant {method!r}; the variants are {', '.join(VARIANTS)}.")
        return VARIANTS[method]
    if not isinstance(method, Mapping):
        raise ValueError(f"A method is a variant's name ({', '.join(VARIANTS)}) or its four fields, not {method!r}.")
    unknown = set(method) - set(asdict(Method()))
    if unknown:
        raise ValueError(
            f"A method has the fields {', '.join(asdict(Method()))}; {', '.join(sorted(unknown))} is not one."
        )
    return Method(**method)


def name_of(method: Method) -> str | None:
    """The variant's name, or None for a method that has none."""
    return next((name for name, variant in VARIANTS.items() if variant == method), None)
