"""What both sides speak: jobs, events, errors, settings and the bus between them. Knows neither side."""
