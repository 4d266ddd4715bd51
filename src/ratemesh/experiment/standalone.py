"""`ratemesh node`: one site that nobody drives, with its own data, encoder and run folder.

It saves its state after every round. However it ends, started again it goes on from its last round, finds out where
the mesh is, says with which round it comes back, and joins there.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.engines.peer import Peer, PeerRound
from ratemesh.engines.protocol import Split
from ratemesh.engines.zenoh_link import ZenohTransport
from ratemesh.errors import InputError
from ratemesh.experiment.config import Config, make_config
from ratemesh.experiment.experiment import Progress
from ratemesh.experiment.health import Health
from ratemesh.experiment.plan import ExperimentSite, Plan
from ratemesh.experiment.records import SCHEMA, RunFolder, round_record
from ratemesh.experiment.saved import save_run
from ratemesh.experiment.site_files import SiteSpec
from ratemesh.experiment.storage import write_json
from ratemesh.graph import Topology
from ratemesh.metrics.accuracies import subspace_accuracies
from ratemesh.threads import pinned
from ratemesh.training.protocol import Node

SETTLE_SECONDS = 3.0
"""How long a starting site listens for peers before it goes on."""

Say = Callable[[str], None]


class SitePlan(Plan):
    """The run as one site knows it: its part of the run's data, or data and encoder of its own."""

    def __init__(self, spec: SiteSpec) -> None:
        self.spec = spec
        shared = spec.shared()
        encoders = spec.site.encoder and [spec.site.encoder]
        own = {"data": spec.site.data, "encoders": encoders, "device": spec.site.device}
        table = shared.model_dump(mode="json", exclude_none=True) | {k: v for k, v in own.items() if v}
        super().__init__(make_config({**table, "names": sorted(spec.peers, key=spec.peers.__getitem__)}))
        spec.check(self.topology.nodes)
        shared.stopping.refuse_apart()
        if shared.method.messages.needs_every:
            raise InputError(
                "method.codec must not be delta between sites: a difference to a lost message cannot be read. "
                "Take int8, half or lowrank."
            )
        every_label = tuple(range(self.data.num_classes))
        if spec.site.data and shared.method.clusters([every_label], Topology(1, ()), len(every_label)):
            raise InputError(
                "site.data must not be set with a method of clusters: nobody knows the other sites' labels."
            )

    def deal(self) -> tuple[list[Tensor], Tensor]:
        """Return the training rows of this site, all but those held out; nobody knows the rows of the others."""
        if not self.spec.site.data:
            return super().deal()
        (own,), validation = self.hold_out([torch.arange(len(self.data.y_train))])
        return [own] * self.topology.nodes, validation

    def node(self, index: int) -> Node:
        """Return what this site is given."""
        node = super().node(index)
        if not self.spec.site.data:
            return node
        return replace(node, share=self.spec.site.share or 1 / self.topology.nodes)


def run_node(spec: SiteSpec, *, say: Say, progress: Progress | None = None) -> dict[str, Any]:
    """Play all rounds of one site and return its summary; goes on where an earlier start of it ended."""
    with pinned(spec.site.threads):
        plan = SitePlan(spec)
        plan.check_room(1)
        plan.config.local.check(plan.shape)
        out = spec.site.out
        folder = RunFolder(out) if (out / "config.toml").is_file() else RunFolder.create(out, plan.config)
        with folder.locked():
            site = ExperimentSite(plan, spec.index)
            done = _restore(site, folder, plan.config)
            if done < plan.config.rounds:
                _join_and_play(site, folder, spec, done, say, progress)
            return _summary(site, folder)


def _restore(site: ExperimentSite, folder: RunFolder, config: Config) -> int:
    """Load the state after the last round whose record and state are both whole; return that round, 0 for none.

    A round's state is saved before its record is written, so a record without a state cannot be.
    """
    records = folder.records()
    last = records[-1]["round"] if records else 0
    done = last if folder.states(last).is_dir() else folder.last_good_round(config)
    folder.keep_rounds(done)
    if done:
        site.load(str(folder.states(done)))
    return done


def _join_and_play(
    site: ExperimentSite, folder: RunFolder, spec: SiteSpec, done: int, say: Say, progress: Progress | None
) -> None:
    run, me, link = spec.fingerprint(), spec.index, spec.link()
    rules = spec.rules()
    if site.plan.config.method.messages.server is not None:  # an old answer of a server would undo a round of training
        rules = replace(rules, staleness=0)
    peer = Peer(me, len(spec.peers), run, rules, lambda start: ZenohTransport(link, me, run, start), say=say)
    rounds, health = site.plan.config.rounds, Health(folder.records(), [me])
    try:
        peer.join(done + 1, SETTLE_SECONDS)
        t = done
        while t < rounds:
            t, skipped = _next_round(peer, t, rounds, say)
            newcomer = t > 1 and not site.program.sample_passes
            if newcomer:
                say(f"round {t}: joins; hears the others once and turns towards them before it is counted")
            began = time.monotonic()
            played = peer.play(site, t, listen=newcomer)
            record = _record(t, played, skipped, peer)
            if collapsed := health.see(record):
                record["collapse"] = [finding.record() for finding in collapsed]
            _save(site, folder, t, record, time.monotonic() - began)
            if progress is not None:
                progress(record)
        peer.leave(rounds, spec.site.deadline)
    finally:
        peer.close()


def _next_round(peer: Peer, t: int, rounds: int, say: Say) -> tuple[int, int]:
    """Return the round after t, or the mesh's where that is further on, and how many were skipped."""
    mesh = min(peer.mesh_round(), rounds)
    if mesh <= t + 2:
        return t + 1, 0
    say(f"round {t + 1}: the mesh is in round {mesh}; goes on there")
    return mesh, mesh - t - 1


def _record(t: int, played: PeerRound, skipped: int, peer: Peer) -> dict[str, Any]:
    """Return a round's record; `refusals` names who sent what could not be used, since the site was started."""
    told = played.told()
    told["outside_theorem"] = max(told["outside_theorem"], played.log.get("outside_theorem", 0.0))
    node = {**played.log, **told, "skipped": float(skipped)}
    refusals = {f"node {j}: {reason}": count for (j, reason), count in sorted(peer.mailbox.refused.items())}
    sent = {"bytes": played.traffic.bytes.total(), "wire_bytes": played.traffic.wire.total(), "refusals": refusals}
    return round_record(t, [node], sent)


def _save(site: ExperimentSite, folder: RunFolder, t: int, record: Mapping[str, Any], seconds: float) -> None:
    """Save the state, then the record, then drop older states: whatever is cut short, nothing recorded is lost."""
    folder.states(t).mkdir(parents=True, exist_ok=True)
    site.save(str(folder.states(t)))
    folder.append(folder.rounds, record)
    folder.append(folder.timing, {"round": t, "seconds": round(seconds, 4)})
    folder.commit(t, site.plan.config)


def _summary(site: ExperimentSite, folder: RunFolder) -> dict[str, Any]:
    """Judge this site's features by its own statistics, and add up its rounds."""
    records = folder.records()
    judged = {"accuracy": _accuracy(site, "test")}
    if len(site.plan.validation):
        judged["val_accuracy"] = _accuracy(site, "validation")
    summary = {
        "schema": SCHEMA,
        "node": site.index,
        **judged,
        "rounds": len(records),
        "skipped": int(sum(record["skipped"] for record in records)),
        "outside_theorem": int(sum(record["outside_theorem"] for record in records)),
        "refused": int(sum(record["refused"] for record in records)),
        "bytes_total": sum(record["bytes"] for record in records),
        "wire_bytes_total": sum(record["wire_bytes"] for record in records),
        "sample_passes": site.program.sample_passes,
    }
    save_run(folder.mesh, site.plan, [site.program.stats], [site.weights()], summary, site.index)
    write_json(folder.path / "summary.json", summary)
    return summary


def _accuracy(site: ExperimentSite, split: Split) -> float:
    """Return how much of a held-out part the site's own statistics tell right."""
    part = site.features(split)
    stats = ClassStats.from_tensors(site.stats())
    return subspace_accuracies(stats, part["Z"][None], part["y"], site.plan.rule)["acc_node"]
