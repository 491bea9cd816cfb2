"""What is drawn in a figure, read back from it."""


def curves(axis) -> dict[str, tuple[list, list]]:
    """What is drawn with a label, by label."""
    lines = [line for line in axis.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): tuple(map(list, line.get_data())) for line in lines}
