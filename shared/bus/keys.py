"""The names of all keys and channels. Pure.

`<namespace>:{p<k>}:…` lies in partition k, one hash slot, so that a script may touch all of it; `<namespace>:…` is
everybody's. Strings that come from outside are percent-encoded: no model, tenant or key can break a name, and people
can still read it.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from urllib.parse import quote

from shared.ids import Kind, partition_in
from shared.jobs import partition_of


@lru_cache(maxsize=4096)
def part(text: str) -> str:
    """`text` as one part of a key."""
    return quote(text, safe="")


def partition_for(text: str, partitions: int) -> int:
    """The partition that `text` (an idempotency key with its tenant) always falls into."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % partitions


class Keys:
    def __init__(self, namespace: str, partitions: int) -> None:
        self.namespace = namespace
        self.partitions = partitions

    def prefix(self, partition: int) -> str:
        return f"{self.namespace}:{{p{partition}}}:"

    def prefix_of(self, job_id: str) -> str:
        """The prefix under which everything of a job lives. ValueError when it can be no job of ours."""
        partition = partition_of(job_id)
        if partition >= self.partitions or not job_id.isascii():
            raise ValueError(f"not a job id here: {job_id!r}")
        return self.prefix(partition)

    def prefix_of_kind(self, text: str, kind: Kind) -> str:
        """The same of what is no job. ValueError when it can be no id of that kind here."""
        partition = partition_in(text, kind)
        if partition >= self.partitions:
            raise ValueError(f"not an id of a {kind.name.lower()} here: {text!r}")
        return self.prefix(partition)

    def job(self, job_id: str) -> str:
        return f"{self.prefix_of(job_id)}job:{job_id}"

    def log(self, job_id: str) -> str:
        return f"{self.prefix_of(job_id)}log:{job_id}"

    def live(self, job_id: str) -> str:
        return f"{self.prefix_of(job_id)}live:{job_id}"

    def prefix_of_batch(self, batch_id: str) -> str:
        """The same of a batch. ValueError when it can be no batch of ours."""
        partition = partition_in(batch_id, Kind.BATCH)
        if partition >= self.partitions:
            raise ValueError(f"not a batch id here: {batch_id!r}")
        return self.prefix(partition)

    def batch(self, batch_id: str) -> str:
        return f"{self.prefix_of_batch(batch_id)}batch:{batch_id}"

    def batches(self, partition: int, tenant: str) -> str:
        """A tenant's batches by their age."""
        return f"{self.prefix(partition)}batches:{part(tenant)}"

    def batch_idempotency(self, partition: int, tenant: str, key: str) -> str:
        return f"{self.prefix(partition)}idem_batch:{part(tenant)}:{part(key)}"

    def batch_made_of(self, partition: int, tenant: str, fingerprint: str) -> str:
        """The batch that was made last of the same request."""
        return f"{self.prefix(partition)}made_batch:{part(tenant)}:{part(fingerprint)}"

    def lane(self, partition: int, model: str, lane: str, tenant: str) -> str:
        return f"{self.prefix(partition)}q:{part(model)}:{lane}:{part(tenant)}"

    def own(self, partition: int, worker_id: str) -> str:
        return f"{self.prefix(partition)}q:@{part(worker_id)}"

    def owners(self, partition: int, model: str) -> str:
        """The workers of a model for whom alone there is, or was, some work."""
        return f"{self.prefix(partition)}owners:{part(model)}"

    def turn(self, partition: int, model: str, lane: str) -> str:
        return f"{self.prefix(partition)}turn:{part(model)}:{lane}"

    def load(self, partition: int, model: str) -> str:
        return f"{self.prefix(partition)}load:{part(model)}"

    def due(self, partition: int) -> str:
        return f"{self.prefix(partition)}due"

    def lanes(self, partition: int) -> str:
        return f"{self.prefix(partition)}lanes"

    def beats(self, partition: int) -> str:
        """When each worker was heard last."""
        return f"{self.prefix(partition)}beats"

    def index(self, partition: int, tenant: str) -> str:
        """A tenant's jobs by their age."""
        return f"{self.prefix(partition)}jobs:{part(tenant)}"

    def file(self, file_id: str) -> str:
        return f"{self.prefix_of_kind(file_id, Kind.FILE)}file:{file_id}"

    def files(self, partition: int, tenant: str) -> str:
        """A tenant's files by their age."""
        return f"{self.prefix(partition)}files:{part(tenant)}"

    def due_files(self, partition: int) -> str:
        """Files by the time at which they go."""
        return f"{self.prefix(partition)}due_files"

    def idempotency(self, partition: int, tenant: str, key: str) -> str:
        return f"{self.prefix(partition)}idem:{part(tenant)}:{part(key)}"

    def endpoint(self, endpoint_id: str) -> str:
        """ValueError when it can be no webhook endpoint of ours."""
        return f"{self.prefix_of_kind(endpoint_id, Kind.ENDPOINT)}endpoint:{endpoint_id}"

    def endpoints(self, partition: int, tenant: str) -> str:
        """A tenant's webhook endpoints by their age."""
        return f"{self.prefix(partition)}endpoints:{part(tenant)}"

    def delivery(self, delivery_id: str) -> str:
        """ValueError when it can be no delivery of ours."""
        return f"{self.prefix_of_kind(delivery_id, Kind.DELIVERY)}delivery:{delivery_id}"

    def deliveries(self, endpoint_id: str, status: str) -> str:
        """An endpoint's deliveries of one status by their age."""
        return f"{self.prefix_of_kind(endpoint_id, Kind.ENDPOINT)}deliveries:{endpoint_id}:{status}"

    def schedule(self, endpoint_id: str) -> str:
        """An endpoint's pending deliveries by the time of their next attempt."""
        return f"{self.prefix_of_kind(endpoint_id, Kind.ENDPOINT)}schedule:{endpoint_id}"

    def schedules(self, partition: int) -> str:
        """The endpoints that have pending deliveries, by the time of the first of them."""
        return f"{self.prefix(partition)}schedules"

    def wake(self, partition: int, model: str) -> str:
        return f"{self.prefix(partition)}wake:{part(model)}"

    def control(self, partition: int, worker_id: str) -> str:
        return f"{self.prefix(partition)}control:{part(worker_id)}"

    def worker(self, worker_id: str) -> str:
        return f"{self.namespace}:worker:{part(worker_id)}"

    @property
    def workers(self) -> str:
        return f"{self.namespace}:workers"

    @property
    def served(self) -> str:
        """The names of the models that were served lately."""
        return f"{self.namespace}:served"

    def model(self, name: str) -> str:
        return f"{self.namespace}:model:{part(name)}"

    def totals(self, name: str) -> str:
        """What the workers of a model have done."""
        return f"{self.namespace}:totals:{part(name)}"

    @property
    def identity(self) -> str:
        """A name of this queue that no other has."""
        return f"{self.namespace}:identity"

    @property
    def layout(self) -> str:
        """How many partitions there are: all must agree."""
        return f"{self.namespace}:partitions"
