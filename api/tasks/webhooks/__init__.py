"""Webhooks on the side of the tasks: endings become deliveries, and deliveries go out endpoint by endpoint.

teller: rows of the outbox -> deliveries on the bus. courier: endpoints that are due -> arq jobs, one for each at once.
turn: what one such job does. pace: how many attempts at one endpoint are under way at once.
All state is the bus's: what arq loses, the next sweep finds due again.
"""
