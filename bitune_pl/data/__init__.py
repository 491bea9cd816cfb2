"""From rows of text to samples of token ids: templates, sources, encoding, batching, the LightningDataModule."""
