"""The tasks role: what must happen beside requests and jobs. The only place that knows arq."""
