"""The paper's figures, drawn from run folders: Figures 2 and 3, Tables 26 and 27 (appendix A.12, A.13)."""
