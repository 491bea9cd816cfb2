"""The paper's tables and figures: a grid of runs, their tables, and the published numbers beside them."""
