"""What readers of a batch are told while it runs: its records as they come, and how fast it gets on."""
