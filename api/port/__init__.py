"""The port: connections with clients, and the server that keeps them. Knows HTTP, and no route and no job."""
