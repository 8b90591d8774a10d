"""Webhooks on the side of the tasks: endings become deliveries, and deliveries go out endpoint by endpoint.

teller: rows of the outbox -> deliveries on the bus. sweep: endpoints that are due -> arq jobs, one for each at a time.
turn: what one such job does. presence: what arq has to be told of it meanwhile.
All state is the bus's: what arq loses, the next sweep finds due again.
"""
