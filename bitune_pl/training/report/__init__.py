"""`bitune report`: one page of a run that opens anywhere."""
