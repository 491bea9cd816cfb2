"""The LightningModule and its callbacks."""
