"""What TensorBoard shows of a run: curves, heat maps of alpha, answers, and an entry with settings and final scores."""
