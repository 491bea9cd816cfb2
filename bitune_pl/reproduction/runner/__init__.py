"""From a table's description to its cells: what is trained and evaluated, where, and once."""
