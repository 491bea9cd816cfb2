"""From cells, the records of runs, to the paper's tables with deviations, gains and verdicts."""
